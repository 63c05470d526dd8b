"""Callbacks: resume points, the best checkpoints, early stopping; Lightning writes and reads checkpoints."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import EarlyStopping

from asr.model.checkpoint import FORMAT, also_named, load, save
from asr.records.run_folder import PREVIOUS, RunFolder, best_measures
from asr.training.csv_logger import MetricsFile
from asr.training.signals import Signals, Stopped
from asr.training.task import TrainingTask


class SaveResumePoint(lightning.Callback):
    """Writes the state of training to `last.ckpt`.

    The state is saved at the start of a step, when the previous step's validation, schedulers and counters
    are complete. A signal received before then ends training.

    Args:
        run: run folder.
        every: optimiser steps between checkpoints.
        signals: signals that end training.
    """

    def __init__(self, run: RunFolder, every: int, signals: Signals) -> None:
        self.path = run.last
        self.every = every
        self.signals = signals
        self.written = 0
        self.first = 0  # step at the start
        self.went_on = False  # whether a step has ended since then

    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Replace Lightning's signal handlers, and defer signals to the end of a step."""
        self.first = self.written = trainer.global_step
        self.signals.handle()
        self.signals.deferred = True

    def on_train_batch_start(
        self, trainer: lightning.Trainer, task: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Write a checkpoint if one is due, but not while gradients accumulate.

        Raises:
            Stopped: a signal was received; the checkpoint has been written.
        """
        _correct_batch_counts(trainer)
        steps = trainer.global_step
        self.went_on = steps > self.first
        if batch_idx % trainer.accumulate_grad_batches:
            return
        received = torch.tensor(self.signals.received, device=task.device)  # perhaps by another rank
        stop = int(trainer.strategy.reduce(received, reduce_op="max"))
        if steps > self.written and (stop or steps % self.every == 0):
            self.written = steps
            self._write(trainer)
        if stop:
            note = f" at step {steps}; resume=auto continues" if steps else " before the first step"
            raise Stopped(stop, note)

    def on_train_end(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Write the final state, from which a longer plan continues."""
        self._write(trainer)

    def _write(self, trainer: lightning.Trainer) -> None:
        # Metrics first: a run that resumes from the checkpoint doesn't log the earlier steps again.
        for logger in trainer.loggers:
            if isinstance(logger, MetricsFile):
                logger.flush()
        trainer.save_checkpoint(self.path)


def _correct_batch_counts(trainer: lightning.Trainer) -> None:
    """Set two of Lightning's counters to their values in an uninterrupted run.

    After resuming, Lightning 2.6 counts the batch that was about to start twice, and validation and logs
    would come one step early.
    """
    loop = trainer.fit_loop.epoch_loop
    loop.batch_progress.total.ready = loop.batch_progress.total.completed + 1
    loop._batches_that_stepped = trainer.global_step


class KeepBest(lightning.Callback):
    """Keeps the checkpoints with the lowest dev error rates; the dev loss breaks ties.

    The file names record the rates, so nothing is lost when a run resumes.

    Args:
        run: run folder.
        count: number of checkpoints to keep.
    """

    def __init__(self, run: RunFolder, count: int) -> None:
        self.run = run
        self.count = count

    def on_validation_end(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Save a checkpoint if it is among the best, then remove the one that it displaces."""
        assert isinstance(task, TrainingTask)
        path, kept = self.run.best_at(task.dev_error, task.dev_loss, trainer.global_step), self.run.best()
        better = path in sorted({*kept, path}, key=best_measures)[: self.count]
        # NaN would count as the lowest error rate, and displace the best checkpoint.
        better = better and math.isfinite(task.dev_error)
        if not trainer.strategy.broadcast(better):  # rank 0 decides: others may see the folder too late
            return
        state = {"format": FORMAT, "run": task.run, "step": trainer.global_step, "model": task.model_state()}
        if trainer.is_global_zero:
            save(state, path)
            for displaced in sorted({*kept, path}, key=best_measures)[self.count :]:
                displaced.unlink()


class StopConverged(lightning.Callback):
    """Ends training one step after the schedule has reduced the learning rate below a limit.

    Args:
        minimum_rate: the limit.
    """

    def __init__(self, minimum_rate: float) -> None:
        self.minimum_rate = minimum_rate

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        task: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stop if the step's learning rate was below the limit."""
        whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if whole and trainer.optimizers[0].param_groups[0]["lr"] < self.minimum_rate:
            trainer.should_stop = True


class StopEarly(EarlyStopping):
    """Early stopping; a resumed run takes its patience from the options, not from the checkpoint."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best error rate and the number of validations since then."""
        super().load_state_dict({**state_dict, "patience": self.patience})


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint plugin on top of `save` and `load`; it keeps the previous checkpoint.

    Args:
        resumed: content of the checkpoint to resume from, if it has been read already.
    """

    def __init__(self, resumed: dict[str, Any] | None = None) -> None:
        self.resumed = resumed

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write atomically, and keep the former checkpoint as previous.ckpt."""
        path = Path(path)
        with also_named(path, PREVIOUS) if path.exists() else nullcontext():
            save(checkpoint, path)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return `resumed` the first time; otherwise read the file without executing code."""
        resumed, self.resumed = self.resumed, None
        return resumed or load(Path(path))
