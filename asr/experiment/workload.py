"""What an experiment evaluates on: recordings, or the items of recipes without recordings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from asr.experiment.cell import Cell
from asr.experiment.records import Evaluation, SplitData
from asr.experiment.timing import Passes
from asr.training.options import TrainConfig


class Workload(Protocol):
    """The interface of `Speech` and `Labels`.

    Attributes:
        data: splits by name, including train and dev; empty without recordings.
        splits: names of the splits to evaluate on.
    """

    data: dict[str, SplitData]
    splits: list[str]

    def digests(self, label: str, training: TrainConfig) -> dict[str, str]:
        """Return the digests of the data that a candidate is trained on."""

    def evaluation(self, label: str, training: Cell, split: str, variant: str) -> Cell:
        """Return the cell that evaluates a variant of a candidate's training."""

    def timing(self, split: str, evaluations: list[Cell]) -> dict[str, Any]:
        """Return what the times of these evaluations' models depend on, besides the models."""

    def command(self, split: str) -> tuple[str, list[str]]:
        """Return the command that repeats an evaluation, and its options besides split and variant."""

    def complete(self, evaluation: Evaluation, folder: Path, cell: Cell) -> None:
        """Enter a finished cell's outcome into its evaluation, given the comparison's folder."""

    @staticmethod
    def evaluate(run: Path, folder: Path, cell: Cell, advance: Callable[[float], None]) -> dict[str, Any]:
        """Evaluate a run in a worker; return the result for the cell's state."""

    @staticmethod
    def passes(models: list[tuple[Path, str]], settings: dict[str, Any], device: str) -> Passes:
        """Return the models of a timing cell, given as run folder and variant, and their input."""
