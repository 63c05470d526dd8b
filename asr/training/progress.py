"""Progress of training: a bar on a terminal, otherwise one line per validation."""

import logging
import time
from collections.abc import Callable
from functools import partial
from math import nan
from typing import Any

import lightning
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import TextColumn

from asr.console import progress
from asr.scoring.measures import is_share
from asr.training.task import TrainingTask

log = logging.getLogger(__name__)

UNLEARNED = 0.95  # dev error rate; a model that only predicts blanks has 1


def position(task: lightning.LightningModule) -> tuple[float, float]:
    """Return the completed and the total length of training: seconds with a time budget, otherwise steps."""
    assert isinstance(task, TrainingTask)
    if budget := task.plan.budget:
        share = max(task.spent, task.global_step / task.plan.steps)  # whichever ends training
        return share * budget.seconds, budget.seconds
    return float(task.global_step), float(task.plan.steps)


def measure_words(measure: str) -> str:
    """Return `dev PER` for `dev_per`, `dev error` for `dev_error`, `dev bits per character`."""
    split, _, rate = measure.partition("_")
    words = rate == "error" or not is_share(measure)
    return f"{split} {rate.replace('_', ' ') if words else rate.upper()}"


def rate_words(measure: str, value: float) -> str:
    """Return a measure with its value.

    Example:
        >>> rate_words("dev_per", 0.0541), rate_words("dev_bits_per_character", 1.5)
        ('dev PER 5.4 %', 'dev bits per character 1.500')
    """
    shown = f"{100 * value:.1f} %" if is_share(measure) else f"{value:.3f}"
    return f"{measure_words(measure)} {shown}"


class Bar(lightning.Callback):
    """Progress bar for the whole training, with loss, dev error rate and throughput.

    Args:
        console: console to draw on.
    """

    def __init__(self, console: Console) -> None:
        self.progress = progress(TextColumn("{task.fields[metrics]}"), console=console, transient=False)

    @rank_zero_only
    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Show the bar."""
        done, total = position(task)
        self.row = self.progress.add_task("training", total=total, completed=int(done), metrics="")
        self.progress.start()

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: lightning.Trainer, task: lightning.LightningModule, *_: Any
    ) -> None:
        """Update the bar."""
        assert isinstance(task, TrainingTask)
        formats: dict[str, Callable[[float], str]] = {
            "loss": "loss {:.3f}".format,
            task.error_rate_name: partial(rate_words, task.error_rate_name),
            "frames_per_s": "{:,.0f} frames/s".format,
        }
        metrics = trainer.callback_metrics
        texts = [text(float(metrics[name])) for name, text in formats.items() if name in metrics]
        self.progress.update(self.row, completed=position(task)[0], metrics="  ".join(texts))

    @rank_zero_only
    def teardown(self, trainer: lightning.Trainer, task: lightning.LightningModule, stage: str) -> None:
        """Stop updating the bar."""
        self.progress.stop()

    def on_exception(
        self, trainer: lightning.Trainer, task: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Stop updating the bar."""
        self.progress.stop()


class WarnUnlearned(lightning.Callback):
    """Warns once if nearly every label is wrong after a third of training, and says what to change."""

    def __init__(self) -> None:
        self.warned = False

    @rank_zero_only
    def on_validation_end(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Warn if a third of the plan is done and the dev error rate is above `UNLEARNED`."""
        assert isinstance(task, TrainingTask)
        done, total = position(task)
        learns = task.dev_error <= UNLEARNED or not is_share(task.error_rate_name)
        if self.warned or 3 * done < total or learns:
            return
        self.warned = True
        steps = task.plan.options.trainer.max_steps
        limit = "budget" if task.plan.budget else "max_steps" if steps else "max_epochs"
        log.warning(
            "%s is %.1f %% after %.0f %% of training: the model isn't learning. Start from a trained model "
            "(init_from=<run>), train for more steps (trainer.%s, smaller data.frames_per_batch), "
            "change optimizer.learning_rate, or check that the transcripts fit the audio (asr align)",
            measure_words(task.error_rate_name),
            100 * task.dev_error,
            100 * done / total,
            limit,
        )


class ProgressLines(lightning.Callback):
    """Prints one line per validation."""

    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Start the clock."""
        self.started = time.monotonic()
        self.first, _ = position(task)

    @rank_zero_only
    def on_validation_end(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Print step, losses, error rate, throughput and remaining time."""
        assert isinstance(task, TrainingTask)
        metrics = trainer.callback_metrics
        done, total = position(task)
        left_s = (time.monotonic() - self.started) / max(done - self.first, 1e-9) * (total - done)
        step = f"{trainer.global_step}/{total:.0f}"
        if task.plan.budget:
            step = f"{trainer.global_step} ({100 * task.spent:.0f} % of the budget)"
        print(
            f"step {step}  loss {float(metrics.get('loss', nan)):.3f}  "
            f"dev loss {float(metrics['dev_loss']):.3f}  "
            f"{rate_words(task.error_rate_name, float(metrics[task.error_rate_name]))}  "
            f"{float(metrics['frames_per_s']):,.0f} frames/s  {left_s:.0f} s left",
            flush=True,
        )
