"""Batches by a frame budget from utterances of like length, resumable at any batch in O(1)."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from asr.errors import UserError


@dataclass(frozen=True)
class BatchPlan:
    """Which utterances form a batch.

    Attributes:
        utterances: indices into the manifest, or into the groups that an epoch joins.
        epoch: passes over the data before this one.
        position: of this batch in its epoch.
    """

    utterances: tuple[int, ...]
    epoch: int = 0
    position: int = 0


@dataclass(frozen=True)
class Cursor:
    """Where a stream of batches goes on: what a checkpoint keeps of the data.

    Attributes:
        epoch: of the next batch.
        position: of the next batch in its epoch.
        batches: already consumed.
    """

    epoch: int = 0
    position: int = 0
    batches: int = 0


def plan_by_length(
    frames: NDArray[np.int64], budget: int, order: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Cut an order of utterances into batches of at most `budget` padded frames.

    Args:
        frames: [utterances] frames of each.
        budget: longest utterance of a batch × its utterances stays within this, except for an
            utterance that is longer than the budget: it is alone in its batch.
        order: indices, similar lengths beside each other.

    Returns:
        Index arrays that together hold every index once.
    """
    batches = []
    start = longest = 0
    for end, length in enumerate(frames[order].tolist()):
        longest = max(longest, length)
        if end > start and longest * (end + 1 - start) > budget:
            batches.append(order[start:end])
            start, longest = end, length
    batches.append(order[start:])
    return batches


def padding_share(frames: NDArray[np.int64], batches: list[NDArray[np.int64]]) -> float:
    """Return the share of padded frames among all frames of the batches, 0 … 1."""
    padded = sum(int(frames[batch].max()) * len(batch) for batch in batches)
    return 1.0 - float(frames.sum()) / max(padded, 1)


class BatchStream(Sampler[BatchPlan]):
    """Batches of successive epochs as one stream; the same on every rank and after every restart.

    An epoch's batches are a function of (seed, epoch) alone: utterances are sorted by length with
    jitter, cut by the budget and shuffled. All ranks plan the same epoch and take turns; an epoch
    whose batches don't divide by the ranks is filled up with its own first batches. Going on from
    a cursor plans that one epoch: no earlier batch is planned or read again.

    Args:
        frames: [utterances] frames of each; where they are joined anew in every epoch, a function of
            the epoch.
        budget: padded frames in a batch.
        batches: length of the stream for this rank, counted from its beginning.
        seed: of the order.
        jitter: lengths are multiplied by 1 ± jitter before sorting, to vary batch mates.
        ranks: number of processes.
        rank: this process.
        start: where to go on; `len()` stays the length from the beginning.
    """

    def __init__(
        self,
        frames: NDArray[np.int64] | Callable[[int], NDArray[np.int64]],
        budget: int,
        batches: int,
        *,
        seed: int = 0,
        jitter: float = 0.1,
        ranks: int = 1,
        rank: int = 0,
        start: Cursor | None = None,
    ) -> None:
        self.frames = frames if callable(frames) else lambda epoch: frames
        if len(self.frames(0)) == 0:
            raise UserError("there are no utterances to train on")
        self.budget = budget
        self.batches = batches
        self.seed = seed
        self.jitter = jitter
        self.ranks = ranks
        self.rank = rank
        self.start = start or Cursor()

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[BatchPlan]:
        return itertools.islice(self._endless(), max(0, self.batches - self.start.batches))

    def _endless(self) -> Iterator[BatchPlan]:
        first = self.start.position
        for epoch in itertools.count(self.start.epoch):
            own = self.epoch(epoch)[self.rank :: self.ranks]
            for position in range(first, len(own)):
                yield BatchPlan(tuple(own[position].tolist()), epoch, position)
            first = 0

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch for all ranks, a multiple of the ranks."""
        random = np.random.default_rng([self.seed, epoch])
        frames = self.frames(epoch)
        noise = 1 + self.jitter * random.uniform(-1, 1, len(frames))
        order = np.argsort(frames * noise, kind="stable")
        plans = plan_by_length(frames, self.budget, order)
        batches = [plans[i] for i in random.permutation(len(plans))]
        missing = -len(batches) % self.ranks
        return batches + list(itertools.islice(itertools.cycle(batches), missing))
