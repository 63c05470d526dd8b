"""Batches of segments of a text: random ones for training, fixed ones for evaluation."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from asr_recipes.language.text import Text
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from asr.console import counted
from asr.data.sampler import BatchPlan
from asr.data.stream import NumberedBatches, StreamBatch


@dataclass(frozen=True)
class SegmentBatch(StreamBatch):
    """Segments of a text, and for each token the one that follows it.

    Attributes:
        inputs: [B, N] int64 tokens.
        targets: [B, N] int64: the tokens one position later.
    """

    inputs: Tensor
    targets: Tensor


def segments(
    tokens: NDArray[np.integer], starts: NDArray[np.int64], length: int, plan: BatchPlan
) -> SegmentBatch:
    """Return the segments that begin at `starts`, of `length` tokens each."""
    windows = torch.from_numpy(tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64))
    ids = [f"segment at token {start}" for start in starts]
    return SegmentBatch(ids, plan, windows[:, :-1], windows[:, 1:])


class TrainingSegments(Dataset[SegmentBatch]):
    """Batches of segments at random positions, each batch determined by (seed, its number)."""

    def __init__(self, tokens: NDArray[np.integer], length: int, batch: int, seed: int) -> None:
        self.tokens, self.length, self.batch, self.seed = tokens, length, batch, seed

    def __getitem__(self, plan: BatchPlan) -> SegmentBatch:
        # Drawn only from these two numbers, so that an interrupted run resumes exactly.
        random = np.random.default_rng([self.seed, plan.position])
        starts = random.integers(len(self.tokens) - self.length, size=self.batch)
        epoch = plan.position * self.batch * self.length // len(self.tokens)
        return segments(self.tokens, starts, self.length, replace(plan, epoch=epoch))


class EvaluationSegments(Dataset[SegmentBatch]):
    """Segments that don't overlap, spread evenly over a split.

    Args:
        tokens: tokens of the split.
        length: length of a segment N.
        batch: segments in a batch.
        most: maximum number of segments; 0: all.
    """

    def __init__(self, tokens: NDArray[np.integer], length: int, batch: int, most: int) -> None:
        self.tokens, self.length, self.batch = tokens, length, batch
        count = (len(tokens) - 1) // length
        chosen = np.linspace(0, count - 1, min(most or count, count)).astype(np.int64)
        self.starts = chosen * length

    def __len__(self) -> int:
        return -(-len(self.starts) // self.batch)

    def __getitem__(self, number: int) -> SegmentBatch:
        starts = self.starts[number * self.batch : (number + 1) * self.batch]
        return segments(self.tokens, starts, self.length, BatchPlan((), 0, number))


class LanguageData(NumberedBatches):
    """The segments of a text for training and development.

    Args:
        text: tokens.
        length: length of a segment N.
        batch: segments in a batch.
        dev_segments: maximum number of development segments.
        seed: random seed of the training segments.
    """

    def __init__(self, text: Text, length: int, batch: int, dev_segments: int, seed: int) -> None:
        self.text, self.length, self.batch = text, length, batch
        training = TrainingSegments(text.tokens["train"], length, batch, seed)
        super().__init__(training, self.held_out("dev", dev_segments))

    def held_out(self, split: str, items: int) -> EvaluationSegments:
        """Return the segments of dev or test; a limited number is spread evenly."""
        return EvaluationSegments(self.text.tokens[split], self.length, self.batch, items)

    def epoch_batches(self, epoch: int) -> int:
        """Return the number of batches that have as many tokens as the text."""
        return max(1, len(self.text.tokens["train"]) // (self.length * self.batch))

    def worst_batch(self) -> SegmentBatch:
        """Return a batch; all have the same size."""
        return self.training_batches[BatchPlan(())]

    def advice(self, batch: SegmentBatch) -> str:
        """Return the size of a batch and the options to lower if it doesn't fit in memory."""
        return (
            f"{counted(self.batch, 'segment')} of {self.length} tokens; lower recipe.batch or recipe.length"
        )

    def describe(self) -> str:
        """Return the text, and the sizes of its splits."""
        return self.text.describe()

    def digest(self, split: str) -> str:
        """Return a hash of the tokens of a split."""
        return self.text.digest(split)
