"""Progress of training: a bar on a terminal, otherwise one line per validation."""

import time
from math import nan
from typing import Any

import lightning
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import TextColumn

from asr.console import progress
from asr.training.plan import TrainingPlan
from asr.training.task import TrainingTask


def plan_total(plan: TrainingPlan) -> float:
    """Return the length of training: seconds with a time budget, otherwise steps."""
    return plan.budget.seconds if plan.budget else float(plan.steps)


def completed(plan: TrainingPlan, task: lightning.LightningModule) -> float:
    """Return the part of `plan_total` that is done."""
    assert isinstance(task, TrainingTask)
    return task.spent * plan.budget.seconds if plan.budget else float(task.global_step)


def _error_label(task: TrainingTask) -> str:
    """Return `dev PER` for `dev_per`, `dev error` for `dev_error`."""
    split, _, rate = task.error_rate_name.partition("_")
    return f"{split} {rate if rate == 'error' else rate.upper()}"


class Bar(lightning.Callback):
    """Progress bar for the whole training, with loss, dev error rate and throughput.

    Args:
        plan: training plan; the bar counts seconds with a time budget, otherwise steps.
        console: console to draw on.
    """

    def __init__(self, plan: TrainingPlan, console: Console) -> None:
        self.plan = plan
        self.progress = progress(TextColumn("{task.fields[metrics]}"), console=console, transient=False)

    @rank_zero_only
    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Show the bar."""
        self.row = self.progress.add_task(
            "training", total=plan_total(self.plan), completed=int(completed(self.plan, task)), metrics=""
        )
        self.progress.start()

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: lightning.Trainer, task: lightning.LightningModule, *_: Any
    ) -> None:
        """Update the bar."""
        assert isinstance(task, TrainingTask)
        formats = {
            "loss": "loss {:.3f}",
            task.error_rate_name: _error_label(task) + " {:.1%}",
            "frames_per_s": "{:.0f} frames/s",
        }
        metrics = trainer.callback_metrics
        texts = [text.format(float(metrics[name])) for name, text in formats.items() if name in metrics]
        self.progress.update(self.row, completed=completed(self.plan, task), metrics="  ".join(texts))

    @rank_zero_only
    def teardown(self, trainer: lightning.Trainer, task: lightning.LightningModule, stage: str) -> None:
        """Stop updating the bar, also after an error."""
        self.progress.stop()


class Lines(lightning.Callback):
    """Prints one line per validation."""

    def __init__(self, plan: TrainingPlan) -> None:
        self.plan = plan
        self.started = time.monotonic()
        self.first = 0.0

    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Start the clock."""
        self.started = time.monotonic()
        self.first = completed(self.plan, task)

    @rank_zero_only
    def on_validation_end(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Print step, losses, error rate, throughput and remaining time."""
        assert isinstance(task, TrainingTask)
        metrics = trainer.callback_metrics
        done, total = completed(self.plan, task), plan_total(self.plan)
        left_s = (time.monotonic() - self.started) / max(done - self.first, 1e-9) * (total - done)
        step = f"{trainer.global_step}/{total:.0f}"
        if self.plan.budget:
            step = f"{trainer.global_step} ({100 * task.spent:.0f} % of the budget)"
        print(
            f"step {step}  loss {float(metrics.get('loss', nan)):.3f}  "
            f"dev loss {float(metrics['dev_loss']):.3f}  "
            f"{_error_label(task)} {100 * float(metrics[task.error_rate_name]):.1f} %  "
            f"{float(metrics['frames_per_s']):.0f} frames/s  {left_s:.0f} s left",
            flush=True,
        )
