"""Progress of training: a bar on a terminal, lines elsewhere."""

import time
from typing import Any

import lightning
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.utilities import rank_zero_only

from asr.task import TrainingTask


class Bar(TQDMProgressBar):
    """One progress bar over the whole training, with error rate and throughput."""

    def get_metrics(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> dict[str, Any]:
        """Leave out Lightning's version number; show rates in percent."""
        items = dict(super().get_metrics(trainer, task))
        items.pop("v_num", None)
        return {
            name: f"{100 * value:.1f} %" if name.endswith("er") and isinstance(value, float) else value
            for name, value in items.items()
        }

    def init_validation_tqdm(self) -> Any:
        """Validation shows through its result alone."""
        bar = super().init_validation_tqdm()
        bar.disable = True
        return bar


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
