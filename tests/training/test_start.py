"""A new run is offered the weights of an earlier one, with the exact options."""

from pathlib import Path

import pytest
from tone_corpora import TINY, make_corpus

from asr.training.config import train_options
from asr.training.run import train
from asr.training.start import offered_starts


@pytest.mark.slow
def test_the_offered_options_start_training_from_a_run_of_the_same_unit(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    own = make_corpus(tmp_path / "own", {"train": 12, "dev": 3})
    earlier = [*TINY, f"data.train=[{tone_corpus}]", "trainer.max_steps=1"]
    train(train_options([*earlier, "run=exp/tones/full"]))
    train(train_options([*earlier, "run=exp/tones/letters", "tokenizer.kind=character"]))
    overrides = [*TINY, f"data.train=[{own}]", "model.subsampling=4", "trainer.max_steps=1"]
    capsys.readouterr()
    train(train_options([*overrides, "run=exp/own/first", "attention=i-clustered-5"]))
    line = "to start from a trained model: init_from=exp/tones/full model.subsampling=2"
    assert line in capsys.readouterr().out

    train(train_options([*overrides, *line.partition(": ")[2].split(), "run=exp/own/second"]))
    options = train_options([*overrides, "run=exp/own/third", "attention=cast-2"])
    assert offered_starts(options, tmp_path / "exp/own/third") == []
    (own / "lexicon.txt").unlink()
    options = train_options([*overrides, "tokenizer.kind=character"])
    (line,) = offered_starts(options, tmp_path / "exp/own/third")
    assert "init_from=exp/tones/letters" in line


@pytest.mark.slow
def test_the_line_for_a_self_conditioned_model_names_its_intermediate_losses(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offered options were refused without them; and they reset the regularisation of the new run."""
    monkeypatch.chdir(tmp_path)
    own = make_corpus(tmp_path / "own", {"train": 12, "dev": 3})
    conditioned = ["model.layers=2", "model.self_conditioned=true", "loss.intermediate=[1]"]
    earlier = [*TINY, f"data.train=[{tone_corpus}]", "trainer.max_steps=1", *conditioned]
    train(train_options([*earlier, "run=exp/tones/full"]))
    overrides = [
        *TINY,
        "model.layers=2",
        f"data.train=[{own}]",
        "trainer.max_steps=1",
        "model.layer_drop=0.1",
    ]
    (line,) = offered_starts(train_options(overrides), tmp_path / "exp/own/full")
    assert "model.layer_drop" not in line
    train(train_options([*overrides, *line.partition(": ")[2].split(), "run=exp/own/full"]))
