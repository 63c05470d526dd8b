"""Items to classify: sequences of small integers with a label, each determined by split, seed and index."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SPLITS = ("train", "dev", "test")
FIXED_SEED = 0  # seed of the evaluation splits, which are the same in every run


@dataclass(frozen=True)
class Item:
    """An item.

    Attributes:
        sequence: [N] uint8.
        label: class, 0 … classes − 1.
    """

    sequence: NDArray[np.uint8]
    label: int

    @property
    def length(self) -> int:
        """Return the length of the sequence."""
        return len(self.sequence)


class ItemSource(ABC):
    """The items of a task.

    Attributes:
        classes: number of labels.
        values: number of values that a position can have; 0: the sequence is a square grey image, read row by
            row.
        longest: maximum length of a sequence.
    """

    classes: int
    values: int
    longest: int

    @abstractmethod
    def item(self, split: str, index: int) -> Item:
        """Return item `index` of a split; there is no last one."""

    @abstractmethod
    def describe(self) -> str:
        """Return a short description."""


def randomness(split: str, seed: int, index: int) -> random.Random:
    """Return a source of random numbers for a generated item.

    Only `random()` is called on it, because Python keeps its sequence in all versions.
    """
    # Seeded with the item's number, so that nothing is stored and an interrupted run resumes exactly.
    return random.Random(SPLITS.index(split) << 96 | seed << 64 | index)
