"""A new run is offered the weights of an earlier one, and takes over what these depend on."""

from pathlib import Path

import pytest
from tone_corpora import TINY, make_corpus

from asr.errors import UserError
from asr.recognizer import Recognizer
from asr.training.config import train_options
from asr.training.run import train
from asr.training.start import offered_start


def test_a_new_run_takes_over_what_the_weights_depend_on(trained: Path, tone_corpus: Path) -> None:
    """Every size had to be repeated, and PyTorch's state_dict named what didn't fit."""
    overrides = ["recipe=folder", f"data.train=[{tone_corpus}]", f"init_from={trained}"]
    options, own = train_options(overrides), Recognizer.load(trained).model.config
    assert (options.features, options.model.layers) == (own.features, own.model.layers)
    assert (options.tokenizer.kind, options.model.dropout) == ("phone", 0.1)
    assert options.model.size == own.model.size
    assert train_options([*overrides, "model.dropout=0.2", "model.layers=1"]).model.dropout == 0.2
    for unfit in ("model.layers=3", "model=wsj", "features.frame_shift_ms=20", "tokenizer.kind=character"):
        key = "model.layers" if unfit == "model=wsj" else unfit.partition("=")[0]
        with pytest.raises(UserError, match=rf"^{key}=\S+: expected \S+ with init_from="):
            train_options([*overrides, unfit])


@pytest.mark.slow
def test_a_run_that_resumes_needs_nothing_of_the_one_that_it_started_from(
    tone_corpus: Path, tmp_path: Path
) -> None:
    """Characters of the start that the new texts lack stay in the vocabulary, also without the start."""
    own = make_corpus(tmp_path / "own", {"train": 12, "dev": 3}, words=["tea", "be"])
    few = ["recipe=folder", "trainer.max_steps=1", "data.workers=0", "trainer.accelerator=cpu"]
    sizes = ["model.layers=1", "model.heads=2", "model.feedforward=64"]
    train(train_options([*few, *sizes, f"data.train=[{tone_corpus}]", f"run={tmp_path / 'start'}"]))
    again = [*few, f"data.train=[{own}]", f"run={tmp_path / 'next'}", f"init_from={tmp_path / 'start'}"]
    train(train_options(again))
    symbols = [Recognizer.load(tmp_path / x).tokenizer.symbols for x in ("start", "next")]
    assert symbols[0] == symbols[1]
    (tmp_path / "start").rename(tmp_path / "gone")
    train(train_options([*again, "resume=auto", "trainer.max_steps=2"]))


@pytest.mark.slow
def test_a_run_of_the_same_unit_is_offered(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a minute of audio was trained from random weights without a word.

    Later, the start that was offered was a run whose dev CER was 100 %.
    """
    monkeypatch.chdir(tmp_path)
    own = make_corpus(tmp_path / "own", {"train": 12, "dev": 3})
    earlier = [*TINY, f"data.train=[{tone_corpus}]", "trainer.max_steps=60"]
    train(train_options([*earlier, "run=exp/tones/full"]))
    assert "start from" not in capsys.readouterr().out  # no published model has phones
    train(train_options([*earlier, "run=exp/tones/letters", "tokenizer.kind=character"]))
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "start from a model" in x]
    assert " s of audio is little for random weights" in line  # was "0.5 minutes"
    # The default learning rate, for random weights, would destroy a published model's.
    assert line.endswith(
        "e.g. init_from=facebook/wav2vec2-base-960h optimizer.learning_rate=5e-5 for English"
    )
    overrides = [x for x in TINY if not x.startswith("model")]
    overrides += [f"data.train=[{own}]", "trainer.max_steps=1"]
    train(train_options([*earlier, "run=exp/tones/nothing", "trainer.max_steps=1"]))
    capsys.readouterr()
    train(train_options([*overrides, "run=exp/own/first", "attention=i-clustered-5"]))
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "start from a model" in x]
    assert line.endswith(": start from a model: init_from=exp/tones/full")
    train(train_options([*overrides, *line.partition("model: ")[2].split(), "run=exp/own/second"]))
    assert "exp/tones/full: its tokenizer, features and model sizes are kept" in capsys.readouterr().out

    train(train_options([*overrides, "init_from=exp/tones/full", "run=exp/own/halved", "model.frames=2"]))
    assert "exp/own/halved: full frames=2 on cpu" in capsys.readouterr().out

    options = train_options([*overrides, "run=exp/own/third", "attention=cast-2"])
    assert offered_start(options, tmp_path / "exp/own/third") is None
    (own / "lexicon.txt").unlink()
    options = train_options([*overrides, "tokenizer.kind=character"])
    assert offered_start(options, tmp_path / "exp/own/third") == Path("exp/tones/letters")


@pytest.mark.slow
def test_a_self_conditioned_model_brings_its_intermediate_losses(tone_corpus: Path, tmp_path: Path) -> None:
    """The weights were refused without them; and they reset the regularisation of the new run."""
    own = make_corpus(tmp_path / "own", {"train": 12, "dev": 3})
    conditioned = ["model.layers=2", "model.self_conditioned=true", "loss.intermediate=[1]"]
    earlier = [*TINY, f"data.train=[{tone_corpus}]", "trainer.max_steps=1", *conditioned]
    train(train_options([*earlier, f"run={tmp_path / 'tones'}"]))
    overrides = [f"data.train=[{own}]", "trainer.max_steps=1", "model.layer_drop=0.1", "data.workers=0"]
    options = train_options([*overrides, f"init_from={tmp_path / 'tones'}", f"run={tmp_path / 'full'}"])
    assert (options.loss.intermediate, options.model.layer_drop) == ([1], 0.1)
    train(options)
