"""Keeps the hypotheses of a few development utterances at every validation."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import lightning
import numpy as np
import torch.distributed
from lhotse.cut import MonoCut
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from asr.files import atomic_text
from asr.records.heard import Heard, read_heard
from asr.training.task import TrainingTask

SHOWN = 5  # utterances


def shown_ids(cuts: Sequence[MonoCut], seed: int) -> list[str]:
    """Return the ids of the utterances to show: the same for the same seed."""
    random = np.random.default_rng([seed, len(cuts)])
    chosen = random.choice(len(cuts), min(SHOWN, len(cuts)), replace=False)
    return [cuts[int(index)].id for index in sorted(chosen)]


class WriteHeard(lightning.Callback):
    """Appends hypotheses to hypotheses.jsonl, and shows them in TensorBoard, W&B and MLflow.

    Args:
        path: the file; a run that resumes first removes the validations that it will repeat.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Remove the entries after the step that training starts from."""
        if trainer.is_global_zero and self.path.exists():
            step = trainer.global_step
            kept = [row for row in read_heard(self.path) if row.step <= step] if step else []
            with atomic_text(self.path) as file:
                file.writelines(map(_line, kept))

    def on_validation_end(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Write the hypotheses of all ranks, in the order of the ids."""
        assert isinstance(task, TrainingTask)
        heard = [task.heard]
        if trainer.world_size > 1:
            heard = [{}] * trainer.world_size
            torch.distributed.all_gather_object(heard, task.heard)
        pairs = {name: pair for one in heard for name, pair in one.items()}
        if not trainer.is_global_zero or not pairs:
            return
        step = trainer.global_step
        rows = [Heard(step, name, *pairs[name]) for name in sorted(pairs)]
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write("".join(map(_line, rows)))
        for logger in trainer.loggers:
            _show(rows, logger, step)


def _show(rows: Sequence[Heard], logger: Logger, step: int) -> None:
    """Show hypotheses below their references, in the form that the logger has for text."""
    match logger:
        case TensorBoardLogger():
            for row in rows:
                text = f"{_verbatim(row.reference)}\n{_verbatim(row.hypothesis)}"
                logger.experiment.add_text(f"dev/{row.id}", text, step)
        case WandbLogger():
            data = [[row.id, row.reference, row.hypothesis] for row in rows]
            logger.log_text("dev/hypotheses", ["id", "reference", "hypothesis"], data, step=step)
        case MLFlowLogger():
            text = "\n".join(
                f"{row.id}\n{_verbatim(row.reference)}\n{_verbatim(row.hypothesis)}" for row in rows
            )
            logger.experiment.log_text(logger.run_id, text, f"hypotheses/{step:07d}.txt")


def _line(row: Heard) -> str:
    return json.dumps(asdict(row), ensure_ascii=False) + "\n"


def _verbatim(text: str) -> str:
    return f"    {text}"  # a Markdown code block, in which nothing is interpreted
