"""The masked-copy task of *Fast Transformers with Clustered Attention*, section C.2."""

from pathlib import Path

import pytest
import torch
from asr_recipes.copy.task import BATCH, MASK, SEPARATOR, SYMBOLS, Sequences, make_sequences
from runs import metrics, weights

from asr import Recognizer
from asr.cli import main
from asr.data.sampler import BatchPlan
from asr.errors import UserError
from asr.model.checkpoint import load
from asr.training.config import train_options
from asr.training.labelling import evaluate, load_task
from asr.training.run import train

SMALL = ["recipe=copy", "model.layers=1", "model.heads=2", "model.head_dim=16", "model.feedforward=64"]
SMALL += ["trainer.accelerator=cpu", "optimizer.learning_rate=3e-3"]


@pytest.mark.parametrize("length", [1, 4, 31, 63])
def test_sequences_are_0w0w_and_masked_symbols_are_visible_in_the_other_half(length: int) -> None:
    inputs, targets = make_sequences(50, length, torch.Generator().manual_seed(0))
    assert inputs.shape == targets.shape == (50, 2 * (length + 1))
    first, second = targets[:, : length + 1], targets[:, length + 1 :]
    assert torch.equal(first, second)
    assert (first[:, 0] == SEPARATOR).all()
    assert first[:, 1:].min() >= 1
    assert first[:, 1:].max() <= SYMBOLS
    masked = inputs == MASK
    assert torch.equal(inputs[~masked], targets[~masked])
    if length > 1:
        assert not (masked[:, : length + 1] & masked[:, length + 1 :]).any()
    assert not masked[:, [0, length + 1]].any()
    share = masked.float().sum(1) / (2 * length)
    assert length < 31 or (share - 0.2).abs().max() < 0.02


def test_all_symbols_and_positions_occur() -> None:
    inputs, targets = make_sequences(3000, 9, torch.Generator().manual_seed(1))
    assert torch.bincount(targets.flatten(), minlength=11)[1:].min() > 4500
    masked = (inputs == MASK).float().mean(0)
    assert (masked[1:10] - 2 / 9).abs().max() < 0.03
    assert (masked[11:] - 2 / 9).abs().max() < 0.03


def test_seed_and_position_determine_a_batch() -> None:
    def batch(seed: int, position: int) -> torch.Tensor:
        return Sequences(31, seed)[BatchPlan((), 0, position)].inputs

    assert batch(0, 3).shape == (BATCH, 64)
    assert torch.equal(batch(0, 3), batch(0, 3))
    assert not torch.equal(batch(0, 3), batch(0, 4))
    assert not torch.equal(batch(0, 3), batch(1, 3))


@pytest.mark.slow
def test_a_small_model_learns_the_task_and_stops_at_the_threshold(tmp_path: Path) -> None:
    overrides = [
        *SMALL,
        "recipe.length=4",
        f"run={tmp_path}",
        "trainer.max_steps=1200",
        "trainer.stop_at=0.02",
    ]
    train(train_options([*overrides, "trainer.validate_every=50"]))
    rows = [row for row in metrics(tmp_path) if row["dev_error"]]
    assert float(rows[0]["dev_error"]) > 0.5
    assert float(rows[-1]["dev_error"]) <= 0.02
    assert len(rows) < 24


@pytest.mark.slow
def test_checkpoints_are_averaged_and_initialise_another_run(tmp_path: Path) -> None:
    """Averaging raised a KeyError, and init_from was ignored."""
    overrides = [*SMALL, "recipe.length=4", "trainer.max_steps=4", "trainer.validate_every=2"]
    first = tmp_path / "first"
    train(train_options([*overrides, f"run={first}", "trainer.keep_best=2", "trainer.average_best=2"]))
    best = [load(path)["model"]["weights"] for path in first.glob("checkpoints/best-*.ckpt")]
    average = load(first / "checkpoints" / "average.ckpt")["model"]["weights"]
    for name, value in average.items():
        assert torch.allclose(value, (best[0][name] + best[1][name]) / 2)
    overrides += ["optimizer.learning_rate=1e-12", f"init_from={first}", "attention=clustered-3"]
    train(train_options([*overrides, f"run={tmp_path / 'second'}"]))
    second = weights(tmp_path / "second")
    assert all(torch.equal(second[name], value) for name, value in average.items())
    with pytest.raises(UserError, match="init_from="):
        train(train_options([*overrides, "model.heads=1", f"run={tmp_path / 'third'}"]))


def test_a_copy_model_is_evaluated_but_is_no_recogniser(tmp_path: Path) -> None:
    train(train_options([*SMALL, "recipe.length=4", "trainer.max_steps=1", f"run={tmp_path}"]))
    task, data = load_task(str(tmp_path))
    dev, test = (evaluate(task, data, split, items=320) for split in ("dev", "test"))
    assert (dev.items, dev.labels, dev.measure) == (320, 640, "error")
    (row,) = (row for row in metrics(tmp_path) if row["dev_error"])
    assert dev.value == pytest.approx(float(row["dev_error"]))
    assert dev.value != test.value
    assert evaluate(task, data, "test").items == 2016
    with pytest.raises(UserError, match="expected the checkpoint of a recogniser"):
        Recognizer.load(tmp_path)


def test_length_is_an_option_of_copy_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "recipe=demo", "recipe.length=31"]) == 1
    assert "unknown option 'recipe.length'" in capsys.readouterr().err
    assert main(["train", "recipe=copy", "recipe.length=0"]) == 1
    assert "recipe.length=0: expected a number 1 … 100000" in capsys.readouterr().err
    assert main(["train", "--help", "recipe=copy"]) == 0
    assert "recipe.length" in capsys.readouterr().out
    assert main(["prepare", "copy"]) == 1
    assert "nothing to prepare" in capsys.readouterr().err
