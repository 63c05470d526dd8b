"""Interface of a trained model with its task, and its measures; `Speech` and `Labels` are for trainings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from asr.experiment.records import SplitData
from asr.experiment.variant import Variant
from asr.measure import quartiles
from asr.scoring.statistics import Interval, Statistic, Values


@dataclass(frozen=True)
class Scored:
    """Predictions of a system, and its measures on any draw of the workload's units.

    Attributes:
        measures: statistics by name; the main one is first.
        files: predictions by file name, as JSON data.
    """

    measures: dict[str, Statistic]
    files: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """Measurements of a variant.

    Attributes:
        values: measures by name.
        samples: measures on resampled units, which are the same for all variants.
        seconds: time of each batch.
        relative: time of each batch divided by full attention's in the same turns.
    """

    values: dict[str, float]
    samples: dict[str, Values]
    seconds: Values
    relative: Values

    def time(self, other: "Outcome") -> tuple[float, Interval]:
        """Return its time as a ratio to another variant's, with quartiles over batches.

        The other variant may have been measured on another day: both are compared via full attention.
        """
        ratios = self.relative / other.relative
        low, _, high = quartiles(ratios)
        return float(np.average(ratios, weights=other.seconds)), (low, high)


class Exchanged(Protocol):
    """A trained model with the items of its task, for `asr.experiment.exchange`.

    Attributes:
        name: split or task.
        source: run, folder or repository of the model, as given.
        timed: part of the model whose time is measured: `encoder` or `model`.
        decoder: `greedy`, or empty without a search.
        device: device of the model.
        data: splits of recordings by name; empty without recordings.
        layers, frames: number of layers whose attention is exchanged, and the model's frame rates.
        items: inputs of the model; each has its number of positions as `length`.
        examples: number of examples, each with one or more inputs.
        units: number of units that are resampled: examples, or groups of them.
    """

    name: str
    source: str
    timed: str
    decoder: str
    device: str
    data: dict[str, SplitData]
    layers: int
    frames: str
    items: Sequence[Any]
    examples: int
    units: int

    def settings(self) -> dict[str, Any]:
        """Return all that outputs depend on, besides the variant: options, and digests of model and data."""

    def use(self, variant: Variant) -> None:
        """Run the model in a variant from now on; raise UserError if it can't."""

    def batch(self, items: list[Any]) -> dict[str, Tensor]:
        """Return the input of a batch."""

    def run(self, inputs: dict[str, Tensor]) -> Any:
        """Return the output of the part whose time is measured."""

    def reference(self, output: Any, items: list[Any]) -> Any:
        """Return the data that `keep` compares with, from the output under full attention."""

    def keep(self, output: Any, items: list[Any], reference: Any) -> list[Any]:
        """Return the data that measures and predictions need from each item's output, as JSON data."""

    def score(self, kept: list[Any]) -> Scored:
        """Return measures and predictions, given the kept data of each item."""
