"""Stored results: what is drawn from them is in RESULTS.md or its archive."""

import ast
import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from asr.files import read_json
from tools.results_tables import SHOWN, pages, redrawn, with_verdict

ROOT = Path(__file__).resolve().parents[2]
QUOTED = [
    (path, (path.parent / stored).resolve(), shown)
    for path in pages()
    for _, stored, _, shown, _ in SHOWN.findall(path.read_text())
]


@pytest.mark.slow
@pytest.mark.parametrize("path", pages(), ids=lambda path: "-".join(path.parts[-3:]))
def test_the_tables_of_results_are_those_of_the_report(path: Path) -> None:
    """`python tools/results_tables.py` changes nothing."""
    text = path.read_text()
    assert redrawn(text, path.parent) == text


def test_readme_has_the_verdict_of_the_map() -> None:
    """`python tools/results_tables.py` changes nothing; without its marks README would say anything."""
    text = (ROOT / "README.md").read_text()
    assert with_verdict(text) == text
    assert with_verdict(text.replace("| encoding | 10 s |", "| encoding | 10 h |")) == text


@pytest.mark.slow
def test_scores_of_questions_are_shown_as_their_program_prints_them(tmp_path: Path) -> None:
    scores = {stored for _, stored, _ in QUOTED if "time_ratios" in read_json(stored)}
    assert scores
    for stored in scores:
        (tmp_path / "scores.json").write_bytes(gzip.decompress(stored.read_bytes()))
        command = [sys.executable, "-m", "asr_recipes.questions.seeds", f"stored={tmp_path / 'scores.json'}"]
        drawn = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for shown in (shown for _, place, shown in QUOTED if place == stored):
            assert shown.strip() in drawn


def test_all_stored_results_are_shown() -> None:
    """They have at most 2 MB in all."""
    stored = set(ROOT.glob("recipes/*/results/*.gz"))
    assert stored == {place for _, place, _ in QUOTED}
    assert sum(path.stat().st_size for path in stored) < 2e6


def test_a_script_beside_results_draws_nothing_when_doctest_imports_it() -> None:
    """The suite drew recipes/prompts/figures/whisper.png again in the checkout."""
    for script in ROOT.glob("recipes/*/results/*.py"):
        effects = [
            x for x in ast.parse(script.read_text()).body if isinstance(x, ast.Expr | ast.For | ast.With)
        ]
        assert len(effects) <= 1, script  # the docstring
