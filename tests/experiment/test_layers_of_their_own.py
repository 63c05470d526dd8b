"""Commands with `none`, `mamba` and `fastformer`: they are trained and compared, but not exchanged."""

from pathlib import Path

import pytest
import torch
from comparisons import arguments
from tone_corpora import TINY

from asr.cli import main
from asr.experiment.results import read_results
from asr.recognizer import Recognizer
from asr.report.options import ReportOptions
from asr.report.page import write_report
from asr.training.config import train_options
from asr.training.run import train

NAMES = ("none", "mamba:state=4,chunk=8", "fastformer")


@pytest.mark.slow
def test_compared_and_reported_in_conformers(fast: None, tone_corpus: Path, tmp_path: Path) -> None:
    """Models with parameters of their own are decoded with no mechanism but their own."""
    folder = tmp_path / "compared"
    names = f'attentions=[full,none,"{NAMES[1]}",fastformer]'
    options = ["evaluate=[full]", "model.block=conformer", "model.convolution_kernel=3"]
    assert main(arguments(tone_corpus, folder, names, *options)) == 0
    results = read_results(folder)
    found = {(x.candidate, x.variant, x.status) for x in results.evaluations}
    assert found == {(name, name, "done") for name in ("full", *NAMES)}
    assert all(x.status == "done" for x in results.trainings)
    text = write_report(results, folder, ReportOptions(maps=False, audio=0, static=False)).read_text()
    assert all(name in text for name in NAMES)


@pytest.mark.slow
def test_decoded_and_exported_but_not_exchanged(
    tone_corpus: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in NAMES:
        run = tmp_path / name.partition(":")[0]
        options = [
            f"run={run}",
            f"attention={name}",
            "model.block=ebranchformer",
            "model.convolution_kernel=3",
        ]
        options += ["trainer.max_steps=1", "trainer.validate_every=1"]
        train(train_options([*TINY, f"data.train=[{tone_corpus}]", *options]))
        assert main(["decode", str(run)]) == 0
        for model, attention in ((run, "full"), (trained, name)):
            capsys.readouterr()
            assert main(["decode", str(model), f"attention={attention}"]) == 1
            (line,) = capsys.readouterr().err.splitlines()
            assert "parameters of its own" in line
        exported = tmp_path / f"{run.name}-exported"
        assert main(["export", str(run), f"out={exported}"]) == 0
        ours, theirs = (Recognizer.load(x).model.state_dict() for x in (run, exported))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[x], theirs[x]) for x in ours)
