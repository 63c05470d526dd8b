"""Batch size and number of epochs follow the amount of data; training says so, and when it isn't learning."""

from dataclasses import replace
from pathlib import Path

import pytest
from runs import metrics
from tone_corpora import TINY

from asr.config import load_yaml
from asr.errors import UserError
from asr.training.config import train_options
from asr.training.options import TrainConfig
from asr.training.run import train
from asr.training.sizes import reasons, settled

OPEN = [*TINY, "data.frames_per_batch=0", "trainer.max_epochs=0"]


def options(corpus: Path, *overrides: str) -> TrainConfig:
    return train_options([*OPEN, f"data.train=[{corpus}]", *overrides])


def test_few_recordings_are_trained_for_500_steps_in_small_batches(tone_corpus: Path) -> None:
    """Batches of 20,000 frames and 40 epochs made 30 steps of 30 recordings, which learned nothing."""
    asked = options(tone_corpus)
    found = settled(asked)
    assert found.data.frames_per_batch == 1000
    steps = found.trainer.validate_every // -(-found.trainer.max_epochs // 40)  # per epoch
    assert found.trainer.max_epochs * steps >= 500
    assert (found.trainer.max_epochs - 1) * steps < 500 or found.trainer.max_epochs == 40
    assert [line.split("=")[0] for line in reasons(asked, found)] == [
        "data.frames_per_batch",
        "trainer.max_epochs",
    ]
    assert settled(found) == found


def test_what_the_user_chooses_stays(tone_corpus: Path) -> None:
    asked = options(tone_corpus, "data.frames_per_batch=2500", "trainer.max_epochs=3")
    assert settled(asked) is asked
    assert reasons(asked, asked) == []
    asked = options(tone_corpus, "trainer.max_steps=7")
    assert len(reasons(asked, settled(asked))) == 1


def test_more_data_gives_larger_batches(tone_corpus: Path) -> None:
    small = options(tone_corpus)
    fast = replace(small, features=replace(small.features, frame_shift_ms=0.1))  # a hundred times the frames
    assert 1000 < settled(fast).data.frames_per_batch <= 20_000


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a manifest, found no such file"):
        settled(options(tmp_path))


def test_numbers_are_written_and_found_again_when_the_run_resumes(
    tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [f"run={tmp_path}", "trainer.max_steps=2"]
    train(options(tone_corpus, *overrides))
    config = load_yaml(tmp_path / "config.yaml")
    assert config["data"]["frames_per_batch"] == 1000
    assert config["trainer"]["max_epochs"] >= 40
    assert "data.frames_per_batch=1000, for about 100 batches" in capsys.readouterr().out
    train(options(tone_corpus, *overrides, "resume=auto", "trainer.max_steps=3"))
    assert "resumed at step 2" in capsys.readouterr().out


def test_a_run_whose_validations_were_chosen_can_be_extended_by_epochs(
    tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The extension was refused: with trainer.max_epochs, trainer.validate_every is left to the user."""
    train(options(tone_corpus, f"run={tmp_path}", "trainer.max_steps=2"))
    train(
        options(tone_corpus, f"run={tmp_path}", "resume=auto", "trainer.max_epochs=90", "trainer.max_steps=3")
    )
    assert "resumed at step 2" in capsys.readouterr().out


@pytest.mark.slow
def test_the_last_step_is_validated_once_and_can_be_the_best(tone_corpus: Path, tmp_path: Path) -> None:
    """The demo's last 16 % of training came after the last validation and were thrown away."""
    overrides = [*TINY, f"data.train=[{tone_corpus}]", f"run={tmp_path}", "optimizer.schedule=constant"]
    train(
        train_options([*overrides, "trainer.max_steps=20", "trainer.validate_every=8", "trainer.keep_best=9"])
    )

    def validated() -> list[int]:
        return [int(row["step"]) for row in metrics(tmp_path) if row["dev_per"]]

    def kept() -> list[int]:
        return sorted(int(path.stem[-7:]) for path in (tmp_path / "checkpoints").glob("best-*.ckpt"))

    assert len(validated()) == 3
    assert kept() == [8, 16, 20]
    overrides += ["trainer.validate_every=8", "trainer.keep_best=9", "resume=auto"]
    train(train_options([*overrides, "trainer.max_steps=24"]))  # a longer plan goes on from there
    assert kept() == [8, 16, 20, 24]
    assert len(validated()) == 4


def test_training_that_does_not_learn_says_what_to_change(
    tone_corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = [*TINY, f"data.train=[{tone_corpus}]", f"run={tmp_path}", "optimizer.learning_rate=1e-9"]
    train(train_options([*overrides, "trainer.max_steps=4", "trainer.validate_every=1"]))
    found = [record.message for record in caplog.records if "isn't learning" in record.message]
    assert len(found) == 1
    assert found[0].startswith("dev PER is 100.0 % after 50 % of training")
    assert "init_from=<run>" in found[0]
    assert "more steps (trainer.max_steps, " in found[0]  # was trainer.max_epochs, which has no effect here
