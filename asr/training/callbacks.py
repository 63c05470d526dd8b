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

from asr.data.stream import StreamBatch
from asr.model.checkpoint import FORMAT, best_name, save
from asr.training.csv_logger import MetricsFile
from asr.training.plan import TimeBudget
from asr.training.task import TrainingTask

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
            self._write(trainer)

    def on_train_end(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Write the finished state."""
        self._write(trainer)

    def _write(self, trainer: lightning.Trainer) -> None:
        for logger in trainer.loggers:  # first: going on from the state repeats no row from before it
            if isinstance(logger, MetricsFile):
                logger.flush()
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
        state = {"format": FORMAT, "step": trainer.global_step, "model": task.model_state()}
        try:
            save(state, self.folder / f"{name}.ckpt")
        except (OSError, RuntimeError) as error:
            log.error("%s could not be written (%s); the earlier ones are kept", name, error)
            return
        for stem in sorted({*kept, name})[self.count :]:
            (self.folder / f"{stem}.ckpt").unlink()


class DataWait(Profiler):
    """Sums the time that training waits for its next batch, and the CPU time that it spends on loading it.

    Attributes:
        seconds, cpu_s: since `Cost` took them last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.cpu_s = 0.0
        self.started: tuple[float, float] | None = None

    def start(self, action_name: str) -> None:
        """Begin to wait."""
        if action_name.endswith("train_dataloader_next"):
            self.started = time.perf_counter(), time.process_time()

    def stop(self, action_name: str) -> None:
        """End of a wait."""
        if action_name.endswith("train_dataloader_next") and self.started is not None:
            self.seconds += time.perf_counter() - self.started[0]
            self.cpu_s += time.process_time() - self.started[1]
            self.started = None


class Cost(lightning.Callback):
    """Counts what training cost, over interruptions, and ends it when its budget of time is spent.

    Validation and checkpoints are not in it, nor what is between an interruption and the resume point
    before it.

    Args:
        budget: time that training may take; None: it isn't this that ends it.
    """

    def __init__(self, budget: TimeBudget | None = None) -> None:
        self.budget = budget
        self.data_wait = DataWait()
        self.batches = 0
        self.frames = 0
        self.step_s = 0.0
        self.wait_s = 0.0
        self.wait_cpu_s = 0.0
        self.step_cpu_s = 0.0
        self.earlier_peak_mib = 0.0  # of the process before an interruption
        self.started = (0.0, 0.0)

    @property
    def seconds(self) -> float:
        """Time in training steps and waiting for their data."""
        return self.step_s + self.wait_s

    @property
    def cpu_s(self) -> float:
        """The same in CPU time of all threads of this process: what a shared machine doesn't distort."""
        return self.step_cpu_s + self.wait_cpu_s

    @property
    def peak_mib(self) -> float:
        """Peak memory of the process."""
        return max(self.earlier_peak_mib, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Tell the schedule where an interrupted training stands."""
        self._spend(trainer, task)

    def _spend(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> bool:
        """Tell the task the share of the budget that is spent, alike on all ranks; return whether all is."""
        if self.budget is None:
            return False
        assert isinstance(task, TrainingTask)
        share = (self.cpu_s if self.budget.clock == "cpu" else self.seconds) / self.budget.seconds
        task.spent = min(1.0, trainer.strategy.broadcast(share))
        return task.spent >= 1.0

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
        self.step_cpu_s += time.process_time() - self.started[1]
        # Waits count with their step: a resume point before the step must not hold them.
        self.wait_s += self.data_wait.seconds
        self.wait_cpu_s += self.data_wait.cpu_s
        self.data_wait.seconds = self.data_wait.cpu_s = 0.0
        self.batches += 1
        self.frames += task.frames(batch)
        task.log("train_s", self.seconds)
        task.log("train_cpu_s", self.cpu_s)
        if self._spend(trainer, task) and (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the counts so far."""
        counts = {"batches": self.batches, "frames": self.frames, "peak_mib": self.peak_mib}
        counts |= {"step_s": self.step_s, "cpu_s": self.step_cpu_s}
        return counts | {"wait_s": self.wait_s, "wait_cpu_s": self.wait_cpu_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.batches, self.frames = state_dict["batches"], state_dict["frames"]
        self.step_s, self.step_cpu_s = state_dict["step_s"], state_dict["cpu_s"]
        self.wait_s = state_dict["wait_s"]
        self.wait_cpu_s = state_dict["wait_cpu_s"]
        self.earlier_peak_mib = state_dict["peak_mib"]

    def summary(self) -> dict[str, Any]:
        """Return seconds, throughput, the share of waiting, and peak memory of process and GPU."""
        workers_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return {
            "frames": self.frames,
            "train_s": self.seconds,
            "train_cpu_s": self.cpu_s,
            "frames_per_s": self.frames / max(self.seconds, 1e-9),
            "data_wait_share": self.wait_s / max(self.seconds, 1e-9),
            "peak_memory_mib": self.peak_mib,
            "peak_worker_memory_mib": workers_kib / 1024,
            "peak_gpu_memory_mib": torch.cuda.max_memory_allocated() / 2**20
            if torch.cuda.is_available()
            else None,
        }
