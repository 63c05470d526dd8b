"""Batches of items of similar length, each determined by (seed, position in the stream)."""

import functools
from dataclasses import dataclass, replace

import numpy as np
import torch
from asr_recipes.longrange.items import Item, ItemSource
from torch import Tensor
from torch.utils.data import Dataset

from asr.console import counted
from asr.data.sampler import BatchPlan
from asr.data.stream import NumberedBatches, StreamBatch

POOL = 8  # number of batches that are drawn together and sorted by length, so that they have little padding
EPOCH = 250  # batches between validations
SPLIT = 2000  # items of a split for evaluation


@dataclass(frozen=True)
class ItemBatch(StreamBatch):
    """A batch of items.

    Attributes:
        values: [B, N] uint8, values of the positions.
        lengths: [B] valid positions.
        labels: [B] int64.
    """

    values: Tensor
    lengths: Tensor
    labels: Tensor


def collate(items: list[Item], plan: BatchPlan, size: int = 0) -> ItemBatch:
    """Pad items with zeros on the right.

    Args:
        items: items.
        plan: position in the stream; `utterances` are the numbers of the items.
        size: number of positions N; 0: length of the longest sequence.
    """
    sequences = [torch.from_numpy(item.sequence) for item in items]
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    values = torch.zeros(len(sequences), size or max(1, int(lengths.max())), dtype=torch.uint8)
    for row, sequence in zip(values, sequences, strict=True):
        row[: len(sequence)] = sequence
    ids = [f"item {index}" for index in plan.utterances]
    return ItemBatch(ids, plan, values, lengths, torch.tensor([item.label for item in items]))


class TrainingBatches(Dataset[ItemBatch]):
    """The training batches: sorted by length within pools of eight batches, which are shuffled.

    Args:
        source: items.
        batch: items in a batch.
        seed: random seed of the order.
    """

    def __init__(self, source: ItemSource, batch: int, seed: int) -> None:
        self.source, self.batch, self.seed = source, batch, seed
        self.pool = functools.lru_cache(maxsize=1)(self._pool)

    def __getitem__(self, plan: BatchPlan) -> ItemBatch:
        number, place = divmod(plan.position, POOL)
        members = self.pool(number)[place]
        # The position counts the batches of all epochs.
        plan = replace(plan, utterances=tuple(index for index, _ in members), epoch=plan.position // EPOCH)
        return collate([item for _, item in members], plan)

    def _pool(self, number: int) -> list[list[tuple[int, Item]]]:
        """Return the numbers and items of the batches in a pool."""
        first = number * POOL * self.batch
        indices = range(first, first + POOL * self.batch)
        members = [(index, self.source.item("train", index)) for index in indices]
        members.sort(key=lambda member: member[1].length)
        order = np.random.default_rng([self.seed, number]).permutation(POOL)
        return [members[i * self.batch : (i + 1) * self.batch] for i in order]


class EvaluationBatches(Dataset[ItemBatch]):
    """The first items of a split, in batches of similar length.

    Args:
        source: items.
        split: `dev` or `test`.
        batch: items in a batch.
        count: number of items; 0: 2,000.
    """

    def __init__(self, source: ItemSource, split: str, batch: int, count: int) -> None:
        self.source, self.split, self.batch, self.count = source, split, batch, count or SPLIT

    def __len__(self) -> int:
        return -(-self.count // self.batch)

    def __getitem__(self, number: int) -> ItemBatch:
        members = self.members[number * self.batch : (number + 1) * self.batch]
        return collate([item for _, item in members], BatchPlan(tuple(i for i, _ in members), 0, number))

    @functools.cached_property
    def members(self) -> list[tuple[int, Item]]:
        """Numbers and items, shortest first."""
        members = [(index, self.source.item(self.split, index)) for index in range(self.count)]
        return sorted(members, key=lambda member: member[1].length)


class ItemData(NumberedBatches):
    """Training batches, and fixed development batches.

    Args:
        source: items.
        batch: items in a batch.
        dev_items: number of development items.
        seed: random seed of the order of batches.
    """

    def __init__(self, source: ItemSource, batch: int, dev_items: int, seed: int) -> None:
        self.source = source
        self.training = TrainingBatches(source, batch, seed)
        self.dev = self.held_out("dev", dev_items)
        super().__init__(self.training, self.dev)

    def held_out(self, split: str, items: int) -> EvaluationBatches:
        """Return the first items of dev or test."""
        return EvaluationBatches(self.source, split, self.training.batch, items)

    def epoch_batches(self, epoch: int) -> int:
        """Return the batches between validations: items have no end."""
        return EPOCH

    def worst_batch(self) -> ItemBatch:
        """Return a batch in which all sequences count as having the maximum length."""
        plan = BatchPlan(())
        items = [item for _, item in self.training.pool(0)[0]]
        batch = collate(items, plan, self.source.longest)
        return replace(batch, lengths=torch.full_like(batch.lengths, self.source.longest))

    def advice(self, batch: ItemBatch) -> str:
        """Return the size of a batch and the option to lower if it doesn't fit in memory."""
        sequences = counted(len(batch.lengths), "sequence")
        return f"{sequences} of {batch.values.shape[1]} positions; lower recipe.batch"

    def describe(self) -> str:
        """Return the task, its lengths and the size of the development data."""
        return f"{self.source.describe()}, {counted(self.dev.count, 'development item')}"

    def digest(self, split: str) -> str:
        """Return nothing: items are generated."""
        return ""

    def padding_share(self) -> float:
        """Return the fraction of padding in the first pool of batches, 0 … 1."""
        batches = [self.training[BatchPlan((), 0, i)] for i in range(POOL)]
        return 1.0 - sum(int(x.lengths.sum()) for x in batches) / sum(x.values.numel() for x in batches)
