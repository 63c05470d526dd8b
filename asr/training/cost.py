"""The cost of training: time, throughput and peak memory, and the time budget that ends it."""

from typing import Any

import lightning
import torch
from lightning.pytorch.profilers import Profiler

from asr.data.stream import StreamBatch
from asr.measure import Seconds, now, peak_resident_mib
from asr.training.budget import TimeBudget
from asr.training.progress import position
from asr.training.task import TrainingTask


class DataWait(Profiler):
    """Measures how long training waits for its next batch.

    Attributes:
        waited: wall and CPU time spent waiting since `Cost` last reset it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waited = Seconds()
        self.started: Seconds | None = None

    def start(self, action_name: str) -> None:
        """Start the clock when the next batch is requested."""
        if action_name.endswith("train_dataloader_next"):
            self.started = now()

    def stop(self, action_name: str) -> None:
        """Stop the clock when the batch arrives."""
        if action_name.endswith("train_dataloader_next") and self.started is not None:
            self.waited += now() - self.started
            self.started = None


class Cost(lightning.Callback):
    """Measures the cost of training across interruptions, and stops when the time budget is spent.

    Validation and checkpoints don't count, nor do steps that are repeated after an interruption.

    Args:
        budget: time budget; None: no limit.

    Attributes:
        frames: feature frames that this process has trained on, without padding.
        seconds: wall time of training steps and of waiting for data.
        cpu_s: CPU time of all threads of this process in the same period.
        wait_s: wall time of waiting for data.
    """

    TOTALS = ("frames", "seconds", "cpu_s", "wait_s")

    def __init__(self, budget: TimeBudget | None = None) -> None:
        self.budget = budget
        self.data_wait = DataWait()
        self.frames = 0
        self.seconds = 0.0
        self.cpu_s = 0.0
        self.wait_s = 0.0
        self.peak_before_resume_mib = 0.0
        self.peak_gpu_before_resume_mib = 0.0
        self.started = Seconds()

    @property
    def peak_mib(self) -> float:
        """Peak resident memory of the training process; 0 if the system doesn't report it."""
        # The system counts only since the last start of the process.
        return max(self.peak_before_resume_mib, peak_resident_mib())

    @property
    def peak_gpu_mib(self) -> float:
        """Peak memory of PyTorch's allocator on the GPU; 0 without one."""
        allocated = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        return max(self.peak_gpu_before_resume_mib, allocated / 2**20)

    @property
    def spent(self) -> float:
        """Fraction of the time budget spent, as this process measured it; may exceed 1."""
        assert self.budget is not None
        return (self.cpu_s if self.budget.clock == "cpu" else self.seconds) / self.budget.seconds

    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Set the position in the schedule when a run resumes."""
        self._update_spent(trainer, task)

    def _update_spent(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> bool:
        """Set `task.spent`, the same on all ranks, and return whether the whole budget is spent."""
        if self.budget is None:
            return False
        assert isinstance(task, TrainingTask)
        task.spent = min(1.0, trainer.strategy.broadcast(self.spent))
        return task.spent >= 1.0

    def on_train_batch_start(
        self, trainer: lightning.Trainer, task: lightning.LightningModule, batch: StreamBatch, batch_idx: int
    ) -> None:
        """Start the clock of a step."""
        self.started = now()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        task: lightning.LightningModule,
        outputs: Any,
        batch: StreamBatch,
        batch_idx: int,
    ) -> None:
        """Stop the clock, log the training time and end training when the budget is spent."""
        assert isinstance(task, TrainingTask)
        # The wait for a batch counts with its step, because a checkpoint between the two must not include it.
        taken = now() - self.started + self.data_wait.waited
        self.seconds += taken.wall_s
        self.cpu_s += taken.cpu_s
        self.wait_s += self.data_wait.waited.wall_s
        self.data_wait.waited = Seconds()
        self.frames += task.frames(batch) if task.usable else 0
        task.log("train_s", self.seconds)
        task.log("train_cpu_s", self.cpu_s)
        spent = self._update_spent(trainer, task)
        done, total = position(task)
        task.log("progress", done / total)
        if spent and (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the totals for a checkpoint; a run that resumes adds to them."""
        totals = {name: getattr(self, name) for name in self.TOTALS}
        peaks = {
            "peak_before_resume_mib": self.peak_mib,
            "peak_gpu_before_resume_mib": self.peak_gpu_mib,
        }
        return totals | peaks

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the totals from a checkpoint."""
        vars(self).update({name: state_dict[name] for name in self.state_dict()})

    def summary(self) -> dict[str, Any]:
        """Return this process's frames, time, throughput, share of time waiting for data, and peak memory."""
        return {
            "frames": self.frames,
            "train_s": self.seconds,
            "train_cpu_s": self.cpu_s,
            "frames_per_s": self.frames / max(self.seconds, 1e-9),
            "data_wait_share": self.wait_s / max(self.seconds, 1e-9),
            "peak_memory_mib": self.peak_mib or None,
            "peak_worker_memory_mib": peak_resident_mib(children=True),
            "peak_gpu_memory_mib": self.peak_gpu_mib or None,
        }
