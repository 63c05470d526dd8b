"""Readers of run folders, an interruption of training, and cells of a comparison without processes."""

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from asr.experiment import worker
from asr.experiment.cell import Cell
from asr.model.checkpoint import load
from asr.training.task import TrainingTask


class Killed(Exception):
    """Simulates the end of the process."""


@contextmanager
def killed(batch: int) -> Iterator[None]:
    """Train in this context until the step on a batch, and no further."""
    original = TrainingTask.training_step

    def training_step(self: TrainingTask, *args: object) -> torch.Tensor:
        if self._data.cursor.batches == batch:
            raise Killed
        return original(self, *args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingTask, "training_step", training_step)
        with pytest.raises(Killed):
            yield


def metrics(folder: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv."""
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the last checkpoint."""
    return load(folder / "checkpoints" / "last.ckpt")["model"]["weights"]


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def in_process(folder: Path, cells: list[Cell], advance: Callable[[Cell, float], None]) -> None:
    """Replaces `run_cells`: importing the libraries for every model would dominate the test's time."""
    for cell in cells:
        worker.work(folder, cell)
        advance(cell, 1.0)
