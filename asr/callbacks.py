"""What watches a training run: resume points, the best checkpoints, what it costs."""

import logging
import resource
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.utilities import rank_zero_only

from asr.checkpoint import FORMAT, best_name, save
from asr.data.stream import StreamBatch
from asr.task import TrainingTask

log = logging.getLogger(__name__)


class ResumePoint(lightning.Callback):
    """Writes the whole state of training to `last.ckpt` between two steps.

    The state is taken as a step starts: validation, schedulers and counters of the step before are
    complete then, and nothing of the next one has happened.

    Args:
        folder: of the checkpoints.
        every: optimiser steps between two writes.
    """

    def __init__(self, folder: Path, every: int) -> None:
        self.path = folder / "last.ckpt"
        self.every = every
        self.written = 0

    def on_train_batch_start(
        self, trainer: lightning.Trainer, task: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Write if it is time, unless gradients are being accumulated."""
        _agree_on_counts(trainer)
        steps = trainer.global_step
        if (
            steps > self.written
            and steps % self.every == 0
            and batch_idx % trainer.accumulate_grad_batches == 0
        ):
            self.written = steps
            trainer.save_checkpoint(self.path)

    def on_train_end(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Write the finished state."""
        trainer.save_checkpoint(self.path)


def _agree_on_counts(trainer: lightning.Trainer) -> None:
    """Set Lightning's two running counts to what they are in a run that was never interrupted.

    After a restart Lightning 2.6 counts the batch that was about to begin twice, and validation and
    logs would come one step early from then on.
    """
    loop = trainer.fit_loop.epoch_loop
    loop.batch_progress.total.ready = loop.batch_progress.total.completed + 1
    loop._batches_that_stepped = trainer.global_step


class KeepBest(lightning.Callback):
    """Keeps the recognisers with the lowest dev error rates; what is kept is read off the folder.

    Args:
        folder: of the checkpoints.
        count: how many.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count

    @rank_zero_only
    def on_validation_end(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Save this one if it is among the best, then remove the one that no longer is."""
        assert isinstance(task, TrainingTask)
        if trainer.sanity_checking or self.count == 0:
            return
        rate = float(trainer.callback_metrics[task.error_rate_name])
        name = best_name(rate, trainer.global_step)
        kept = sorted(path.stem for path in self.folder.glob("best-*.ckpt"))
        if len(kept) >= self.count and name >= kept[self.count - 1]:
            return
        state = {"format": FORMAT, "step": trainer.global_step, **task.model_state()}
        try:
            save(state, self.folder / f"{name}.ckpt")
        except (OSError, RuntimeError) as error:
            log.error("%s could not be written (%s); the earlier ones are kept", name, error)
            return
        for stem in sorted({*kept, name})[self.count :]:
            (self.folder / f"{stem}.ckpt").unlink()


class DataWait(Profiler):
    """Sums the time that training waits for its next batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.started: float | None = None

    def start(self, action_name: str) -> None:
        """Begin to wait."""
        if action_name.endswith("train_dataloader_next"):
            self.started = time.perf_counter()

    def stop(self, action_name: str) -> None:
        """End of a wait."""
        if action_name.endswith("train_dataloader_next") and self.started is not None:
            self.seconds += time.perf_counter() - self.started
            self.started = None


class Cost(lightning.Callback):
    """Counts what training cost, over interruptions: validation and checkpoints are not in it."""

    def __init__(self) -> None:
        self.data_wait = DataWait()
        self.batches = 0
        self.frames = 0
        self.step_s = 0.0
        self.cpu_s = 0.0  # of this process, all threads: what a shared machine doesn't distort
        self.started = (0.0, 0.0)

    @property
    def seconds(self) -> float:
        """Time in training steps and waiting for their data."""
        return self.step_s + self.data_wait.seconds

    def on_train_batch_start(
        self, trainer: lightning.Trainer, task: lightning.LightningModule, batch: StreamBatch, batch_idx: int
    ) -> None:
        """Start the step's clock."""
        self.started = time.perf_counter(), time.process_time()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        task: lightning.LightningModule,
        outputs: Any,
        batch: StreamBatch,
        batch_idx: int,
    ) -> None:
        """Stop the step's clock."""
        assert isinstance(task, TrainingTask)
        self.step_s += time.perf_counter() - self.started[0]
        self.cpu_s += time.process_time() - self.started[1]
        self.batches += 1
        self.frames += task.frames(batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts so far."""
        counts = {"batches": self.batches, "frames": self.frames, "step_s": self.step_s, "cpu_s": self.cpu_s}
        return counts | {"wait_s": self.data_wait.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.batches, self.frames = state_dict["batches"], state_dict["frames"]
        self.step_s, self.cpu_s = state_dict["step_s"], state_dict["cpu_s"]
        self.data_wait.seconds = state_dict["wait_s"]

    def summary(self) -> dict[str, Any]:
        """Return seconds, throughput, the share of waiting, and peak memory of process and GPU."""
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        workers_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return {
            "train_s": self.seconds,
            "train_cpu_s": self.cpu_s,
            "frames_per_s": self.frames / max(self.seconds, 1e-9),
            "data_wait_share": self.data_wait.seconds / max(self.seconds, 1e-9),
            "peak_memory_mib": peak_kib / 1024,
            "peak_worker_memory_mib": workers_kib / 1024,
            "peak_gpu_memory_mib": torch.cuda.max_memory_allocated() / 2**20
            if torch.cuda.is_available()
            else None,
        }
