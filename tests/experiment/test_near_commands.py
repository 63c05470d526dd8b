"""Commands with near-field attention: training, decoding, comparing, timing, advice."""

import json
from pathlib import Path

import pytest
from comparisons import arguments
from tone_corpora import TINY

from asr.cli import main
from asr.experiment.results import read_results
from asr.training.config import train_options
from asr.training.run import train

NAME = "near-10:topk=8,window=3"


def test_a_model_trains_with_it_and_decodes_with_another(tone_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    steps = ["trainer.max_steps=2", "trainer.validate_every=2"]
    train(train_options([*TINY, f"data.train=[{tone_corpus}]", f"run={run}", f"attention={NAME}", *steps]))
    for attention in (NAME, "full"):
        assert main(["decode", str(run), f"attention={attention}"]) == 0
        about = json.loads((run / f"decode/test/{attention}-greedy/decode.json").read_text())
        assert about["attention"] == attention


def test_a_trained_model_is_decoded_with_its_default_options(trained: Path) -> None:
    """The windows and top keys of near-25 hold most of these short utterances: it decodes as `full` does."""
    assert main(["decode", str(trained), "attention=near-25"]) == 0
    folder = trained / "decode" / "test" / "near-25-greedy"
    assert main(["score", str(folder)]) == 0
    assert json.loads((folder / "score.json").read_text())["wer"]["rate"] < 0.1


@pytest.mark.slow
def test_a_comparison_trains_and_exchanges_it(fast: None, tone_corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    names = f"attentions=[full,{NAME}]"
    assert main(arguments(tone_corpus, folder, names, f"evaluate=[{NAME}]")) == 0
    results = json.loads((folder / "results.json").read_text())
    assert {x["candidate"] for x in results["trainings"]} == {"full", NAME}
    found = {(x["candidate"], x["variant"], x["status"]) for x in results["evaluations"]}
    assert {("full", NAME, "done"), (NAME, NAME, "done")} <= found


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_it_is_timed(backend: str, tmp_path: Path) -> None:
    given = [f"attentions=[full,{NAME}@{backend}]", "lengths=40", "heads=2", "head_dim=8", "rounds=1"]
    assert main(["bench", *given, "seconds=0", "peak_memory=false", f"out={tmp_path / 'bench.json'}"]) == 0
    rows = read_results(tmp_path / "bench.json").evaluations
    assert [row.passes for row in rows if row.variant == f"{NAME}@{backend}"] == [
        "forward",
        "forward+backward",
    ]


@pytest.mark.slow
def test_advice_ranks_it(tone_corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"attentions=[full,{NAME}]", "rounds=1", "seconds=0", "memory=false"]
    model = ["model.layers=1", "model.heads=1", "model.head_dim=8", "data.frames_per_batch=500"]
    assert main(["advise", str(tone_corpus), *given, *model]) == 0
    assert NAME in " ".join(capsys.readouterr().out.split())
