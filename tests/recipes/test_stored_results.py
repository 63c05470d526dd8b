"""Stored results: what `asr report` or the tool that made them draws is in RESULTS.md or its archive."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from asr.cli import main

ROOT = Path(__file__).resolve().parents[2]
SHOWN = re.compile(r"<!-- tables: (\S+)((?: \w+=\w+)*) -->\n(.*?)<!-- /tables -->", flags=re.S)
PAGES = sorted([*ROOT.glob("recipes/*/RESULTS.md"), *ROOT.glob("recipes/*/results/archive.md")])
RESULTS = {path: path.read_text() for path in PAGES}
QUOTED = [(path, *found) for path, text in RESULTS.items() for found in SHOWN.findall(text)]


def tables(text: str) -> list[str]:
    """Return the tables of a document, each with its title."""
    return re.findall(r"^(\S[^\n]*\n\n(?:\|[^\n]*\n)+)", text, flags=re.M)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "stored", "options", "shown"), QUOTED, ids=[stored for _, stored, *_ in QUOTED]
)
def test_the_tables_of_results_are_those_of_the_report(
    path: Path, stored: str, options: str, shown: str, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    file.write_bytes(gzip.decompress((path.parent / stored).read_bytes()))
    results = json.loads(file.read_text())
    if "time_ratios" in results:
        command = [sys.executable, ROOT / "tools/accuracy.py", "seeds", f"stored={file}"]
        drawn = tables(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    else:
        comparison = ["maps=false", "static=false"] if "tasks" not in results else []
        assert main(["report", str(tmp_path), *comparison, *options.split()]) == 0
        drawn = tables((tmp_path / "results.md").read_text())
    assert tables(shown)
    for table in tables(shown):
        assert table in drawn


def test_all_stored_results_are_shown() -> None:
    """They have at most 2 MB in all."""
    stored = set(ROOT.glob("recipes/*/results/*.gz"))
    assert stored == {path.parent / name for path, name, *_ in QUOTED}
    assert sum(path.stat().st_size for path in stored) < 2e6
