"""Training steps, non-finite losses, memory, the run folder and interruptions."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import Asr
from quick import quick
from runs import assert_same_weights, metrics, weights
from tone_corpora import TINY

import asr.losses.loss
from asr.cli import main
from asr.data.batch import Batch
from asr.errors import UserError
from asr.losses.ctc import ctc_loss
from asr.training.config import train_options
from asr.training.options import TrainConfig
from asr.training.recognition import RecognitionTask
from asr.training.run import build_task, train


def options(corpus: Path, folder: Path, *overrides: str) -> TrainConfig:
    return train_options([*TINY, f"data.train=[{corpus}]", f"run={folder}", *overrides])


def break_losses(monkeypatch: pytest.MonkeyPatch, calls: range) -> list[int]:
    """Make the losses of the given training batches NaN, not counting the trial of the largest batch."""
    count = [-1]

    def broken(*args: torch.Tensor) -> torch.Tensor:
        losses = ctc_loss(*args)
        if torch.is_grad_enabled():
            count[0] += 1
            if count[0] - 1 in calls:
                losses = losses * float("nan")
        return losses

    monkeypatch.setattr(asr.losses.loss, "ctc_loss", broken)
    return count


def test_the_threads_are_those_of_the_options(tone_corpus: Path, tmp_path: Path) -> None:
    """With several processes, Lightning divided the cores among them, whatever trainer.threads said."""
    task, _ = build_task(options(tone_corpus, tmp_path, "trainer.threads=1"), resuming=False)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        task.on_fit_start()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def run_out_of_memory(monkeypatch: pytest.MonkeyPatch, where: str, calls: range) -> None:
    """Make the given training batches run out of memory, not counting the trial of the largest batch."""
    count = itertools.count(-1)

    def full(gradient: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError

    def broken(*args: torch.Tensor) -> torch.Tensor:
        losses = ctc_loss(*args)
        if torch.is_grad_enabled() and next(count) in calls:
            if where == "forward":
                raise torch.OutOfMemoryError
            losses.register_hook(full)
        return losses

    monkeypatch.setattr(asr.losses.loss, "ctc_loss", broken)


@pytest.mark.slow
def test_batches_with_a_nonfinite_loss_are_skipped_and_counted(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = ["optimizer.schedule=constant", "optimizer.warmup_steps=0", "trainer.validate_every=99"]
    train(options(tone_corpus, tmp_path / "short", *overrides, "trainer.max_steps=4"))
    break_losses(monkeypatch, range(4, 6))
    train(options(tone_corpus, tmp_path / "long", *overrides, "trainer.max_steps=6"))
    assert_same_weights(tmp_path / "short", tmp_path / "long")
    assert json.loads((tmp_path / "long" / "training.json").read_text())["skipped_batches"] == 2
    assert caplog.text.count("batch skipped: the loss is not finite for train-") == 2


def test_progress_if_no_loss_is_finite_before_the_first_validation(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printing progress raised a KeyError."""
    break_losses(monkeypatch, range(2))
    train(options(tone_corpus, tmp_path, "trainer.max_steps=4", "trainer.validate_every=2"))
    first, *_ = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert "loss nan" in first


def test_training_stops_when_no_loss_is_finite(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_losses(monkeypatch, range(2, 100))
    monkeypatch.setattr("asr.training.task.SKIP_PATIENCE", 3)
    with pytest.raises(
        UserError, match=r"4 successive batches were skipped; the last: the loss is not finite for train-\d+"
    ):
        train(options(tone_corpus, tmp_path / "run", "trainer.max_steps=20"))


class InfiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        return gradient * float("inf")


def test_steps_with_a_nonfinite_gradient_are_skipped(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count(-1)  # the first is the trial of the largest batch

    def broken(*args: torch.Tensor) -> torch.Tensor:
        losses = ctc_loss(*args)
        return InfiniteGradient.apply(losses) if next(calls) in (1, 2) else losses

    monkeypatch.setattr(asr.losses.loss, "ctc_loss", broken)
    folder = train(options(tone_corpus, tmp_path / "run", "trainer.max_steps=4"))
    assert json.loads((folder / "training.json").read_text())["skipped_batches"] == 2
    assert all(x.isfinite().all() for x in weights(folder).values())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_training_stops_when_no_gradient_is_finite(
    accumulate: int, tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """59 of 60 steps were skipped, and a comparison called the run better: finite losses reset the count."""
    calls = itertools.count(-1)

    def broken(*args: torch.Tensor) -> torch.Tensor:
        losses = ctc_loss(*args)
        return InfiniteGradient.apply(losses) if next(calls) >= 2 * accumulate else losses

    monkeypatch.setattr(asr.losses.loss, "ctc_loss", broken)
    monkeypatch.setattr("asr.training.task.SKIP_PATIENCE", 3)
    overrides = [f"trainer.accumulate={accumulate}", "trainer.max_steps=20", "trainer.validate_every=99"]
    with pytest.raises(
        UserError, match=r"4 successive .* skipped; the last: the gradient norm of step 5 is "
    ):
        train(options(tone_corpus, tmp_path / "run", *overrides))


def test_training_that_skips_most_of_its_steps_fails(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never more than SKIP_PATIENCE in a row, but a model of a quarter of the steps stood in a comparison."""
    calls = itertools.count(-1)

    def broken(*args: torch.Tensor) -> torch.Tensor:
        losses = ctc_loss(*args)
        return (
            losses if not torch.is_grad_enabled() or next(calls) % 4 == 0 else InfiniteGradient.apply(losses)
        )

    monkeypatch.setattr(asr.losses.loss, "ctc_loss", broken)
    with pytest.raises(UserError, match="expected finite losses and gradients, found 2 in 8 steps"):
        train(options(tone_corpus, tmp_path / "run", "trainer.max_steps=8"))
    assert not (tmp_path / "run" / "training.json").exists()


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_training_without_a_single_finite_step_fails(
    what: str,
    tone_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With fewer batches than are patiently skipped, training that learnt nothing ended as a success."""
    spoil = (lambda x: x * float("nan")) if what == "loss" else InfiniteGradient.apply
    monkeypatch.setattr(asr.losses.loss, "ctc_loss", lambda *args: spoil(ctc_loss(*args)))
    overrides = [*TINY, f"data.train=[{tone_corpus}]", f"run={tmp_path}", "trainer.max_steps=3"]
    for extra in ([], ["resume=auto"]):  # the second finds the steps taken
        assert main(["train", *overrides, *extra]) == 1
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(
            f"asr: {tmp_path}: expected finite losses and gradients, found none in 3 steps"
        )
    assert not (tmp_path / "training.json").exists()
    assert ("step 3: the dev loss is not finite" in caplog.text) == (what == "loss")


def test_the_largest_batch_is_tried_at_the_precision_of_training(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial ran in float32: with bf16, the largest batches that fit were refused."""
    precisions = []

    def recorded(*args: torch.Tensor) -> torch.Tensor:
        precisions.append(torch.is_autocast_enabled("cpu"))
        return ctc_loss(*args)

    monkeypatch.setattr(asr.losses.loss, "ctc_loss", recorded)
    overrides = ["trainer.max_steps=1", "trainer.precision=bf16", "trainer.validate_every=9"]
    train(options(tone_corpus, tmp_path / "run", *overrides))
    assert precisions[:2] == [True, True]


def test_a_validation_without_a_number_keeps_the_best_checkpoint(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN was taken for the lowest error rate, and the best checkpoint deleted."""
    calls, counts = itertools.count(), RecognitionTask.dev_counts

    def overflowing(task: RecognitionTask, batch: Batch) -> tuple[float, float, float, float]:
        _, *others = counts(task, batch)
        return (1.0 if next(calls) == 0 else float("nan"), *others)  # type: ignore[return-value]

    monkeypatch.setattr(RecognitionTask, "dev_counts", overflowing)
    overrides = ["trainer.max_steps=2", "trainer.validate_every=1", "trainer.keep_best=1"]
    folder = train(options(tone_corpus, tmp_path / "run", *overrides))
    (best,) = (folder / "checkpoints").glob("best-*.ckpt")
    assert best.name.endswith("-step0000001.ckpt")


def test_running_out_of_memory_is_found_before_the_first_step(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*args: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(asr.losses.loss, "ctc_loss", out_of_memory)
    with pytest.raises(UserError, match=r"out of memory on the largest batch: \d+ utterances of up to"):
        train(options(tone_corpus, tmp_path / "run", "trainer.max_steps=3"))
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("precision", quick(["fp32", "bf16"], "fp32".__eq__))
def test_a_later_batch_that_does_not_fit_in_memory_is_skipped(
    where: str,
    precision: str,
    tone_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Training ended with a traceback, although the largest batch had fitted before its first step."""
    overrides = ["optimizer.schedule=constant", "optimizer.warmup_steps=0", "trainer.validate_every=99"]
    overrides += [f"trainer.precision={precision}"]
    train(options(tone_corpus, tmp_path / "short", *overrides, "trainer.max_steps=4"))
    run_out_of_memory(monkeypatch, where, range(4, 6))
    train(options(tone_corpus, tmp_path / "long", *overrides, "trainer.max_steps=6"))
    assert_same_weights(tmp_path / "short", tmp_path / "long")
    assert json.loads((tmp_path / "long" / "training.json").read_text())["skipped_batches"] == 2
    assert caplog.text.count("batch skipped: out of memory: ") == 2
    assert "lower data.frames_per_batch=" in caplog.text


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_training_stops_when_no_batch_fits_in_memory(
    where: str, tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_out_of_memory(monkeypatch, where, range(2, 100))
    monkeypatch.setattr("asr.training.task.SKIP_PATIENCE", 3)
    with pytest.raises(UserError, match="4 successive batches were skipped; the last: out of memory: "):
        train(options(tone_corpus, tmp_path / "run", "trainer.max_steps=20"))


def test_files_of_the_run_folder(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {"config.yaml", "environment.json", "metrics.csv", "checkpoints", "training.json"} <= names
    environment = json.loads((trained / "environment.json").read_text())
    assert environment["backend"] in ("native", "reference")
    assert len(environment["lexicon"]) == 12
    assert all(len(digest) == 12 for digest in environment["data"].values())
    rows = metrics(trained)
    assert [int(row["step"]) for row in rows] == list(range(80))
    assert float(rows[-1]["dev_per"]) < 0.1
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"]) / 5


@pytest.mark.slow
def test_two_ranks_train_on_the_same_stream(tone_corpus: Path, tmp_path: Path) -> None:
    overrides = [*TINY, f"data.train=[{tone_corpus}]", f"run={tmp_path}", "trainer.max_steps=30"]
    overrides += ["trainer.devices=2", "trainer.validate_every=10"]
    process = Asr(["train", *overrides])
    said, errors = process.communicate()
    assert process.wait() == 0, errors[-2000:]
    assert said.count("30 steps") == 2  # the plan and the summary, of one rank
    rows = metrics(tmp_path)
    assert [int(row["step"]) for row in rows] == list(range(30))
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"]) / 2
    assert json.loads((tmp_path / "training.json").read_text())["epochs"] == pytest.approx(15)


def test_of_equal_error_rates_the_checkpoint_of_the_lower_loss_is_kept(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was kept: that of an untrained model, which recognises nothing either."""
    losses = iter([3.0, 2.0, 2.5, math.nan])

    def counts(task: RecognitionTask, batch: Any) -> tuple[float, float, float, float]:
        return 4.0, 4.0, next(losses), 1.0

    monkeypatch.setattr(RecognitionTask, "dev_counts", counts)
    length = ["trainer.max_steps=3", "trainer.validate_every=1", "trainer.keep_best=1"]
    given = ["data.frames_per_batch=20000", "tokenizer.kind=character"]
    train(options(tone_corpus, tmp_path, *length, *given))
    (best,) = (tmp_path / "checkpoints").glob("best-*.ckpt")
    assert torch.load(best, weights_only=True)["step"] == 2


def test_the_logged_loss_is_the_mean_of_a_steps_batches(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With accumulation, it was that of the last batch."""
    compute, sums = RecognitionTask.losses, []

    def losses(task: RecognitionTask, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        found, targets = compute(task, batch)
        sums.append((found.sum().item(), targets.item()))
        return found, targets

    monkeypatch.setattr(RecognitionTask, "losses", losses)
    options = [*TINY, f"data.train=[{tone_corpus}]", f"run={tmp_path}", "trainer.accumulate=3"]
    train(train_options([*options, "trainer.max_steps=2", "tokenizer.kind=character"]))
    logged = [float(row["loss"]) for row in metrics(tmp_path)]
    _, *batches = sums  # the first is the trial of the largest batch
    steps = [[sum(x) for x in zip(*batches[i : i + 3], strict=True)] for i in (0, 3)]
    assert logged == pytest.approx([loss / targets for loss, targets in steps], rel=1e-5)
    assert batches[2][0] / batches[2][1] != pytest.approx(logged[0], rel=1e-3)


def test_accumulated_batches_make_the_step_of_one_batch(tone_corpus: Path, tmp_path: Path) -> None:
    """Each batch counted the same, however many targets it had: utterances in small batches counted more."""
    found = []
    for size, accumulate in ((60, 1), (10, 6)):
        own = [f"data.utterances_per_batch={size}", f"trainer.accumulate={accumulate}", "model.dropout=0"]
        own += ["data.frames_per_batch=0", "optimizer.learning_rate=1e-3"]
        own += ["trainer.max_steps=2", "trainer.validate_every=9", "trainer.clip=0"]
        folder = train(options(tone_corpus, tmp_path / str(size), *own))
        rows = [(float(row["loss"]), float(row["gradient_norm"])) for row in metrics(folder) if row["loss"]]
        found.append(rows)
    assert np.array(found[0]) == pytest.approx(np.array(found[1]), rel=1e-4)
