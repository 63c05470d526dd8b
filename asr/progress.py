"""Progress of training: a bar on a terminal, lines elsewhere."""

import time
from typing import Any

import lightning
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from asr.task import TrainingTask


class Bar(lightning.Callback):
    """One progress bar over the whole training, with loss, dev error rate and throughput.

    Args:
        steps: optimiser steps of the whole training.
        console: where to draw.
    """

    def __init__(self, steps: int, console: Console) -> None:
        self.steps = steps
        metrics = TextColumn("{task.fields[metrics]}")
        self.progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            metrics,
            console=console,
        )

    @rank_zero_only
    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Show the bar."""
        self.row = self.progress.add_task(
            "training", total=self.steps, completed=trainer.global_step, metrics=""
        )
        self.progress.start()

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: lightning.Trainer, task: lightning.LightningModule, *_: Any
    ) -> None:
        """Move the bar."""
        assert isinstance(task, TrainingTask)
        shown = {"loss": "loss {:.3f}", task.error_rate_name: "", "frames_per_s": "{:.0f} frames/s"}
        shown[task.error_rate_name] = task.error_rate_name.replace("_", " ").upper() + " {:.1%}"
        known = trainer.callback_metrics
        texts = [form.format(float(known[name])) for name, form in shown.items() if name in known]
        self.progress.update(self.row, completed=trainer.global_step, metrics="  ".join(texts))

    @rank_zero_only
    def teardown(self, trainer: lightning.Trainer, task: lightning.LightningModule, stage: str) -> None:
        """Leave the bar as it is, also after an error."""
        self.progress.stop()


class Lines(lightning.Callback):
    """Progress where there is no terminal: a line per validation."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.started = time.monotonic()
        self.first_step = 0

    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Start the clock."""
        self.started = time.monotonic()
        self.first_step = trainer.global_step

    @rank_zero_only
    def on_validation_end(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Print step, losses, error rate and the time left."""
        assert isinstance(task, TrainingTask)
        metrics = trainer.callback_metrics
        done = trainer.global_step - self.first_step
        left_s = (time.monotonic() - self.started) / max(done, 1) * (self.steps - trainer.global_step)
        name = task.error_rate_name
        print(
            f"step {trainer.global_step}/{self.steps}  loss {float(metrics['loss']):.3f}  "
            f"dev loss {float(metrics['dev_loss']):.3f}  "
            f"{name.replace('_', ' ').upper()} {100 * float(metrics[name]):.1f} %  "
            f"{float(metrics['frames_per_s']):.0f} frames/s  {left_s:.0f} s left",
            flush=True,
        )
