"""Batches of utterances of similar length within a frame budget, resumable at any batch."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from asr.errors import UserError


@dataclass(frozen=True)
class BatchPlan:
    """The utterances of a batch, and its place in the stream of batches.

    Attributes:
        utterances: indices into the manifest, or into the epoch's groups of joined utterances.
        epoch: number of the epoch, from 0.
        position: index of the batch in the epoch, counting the batches of all ranks.
    """

    utterances: tuple[int, ...]
    epoch: int = 0
    position: int = 0


@dataclass(frozen=True)
class Cursor:
    """Position in a stream of batches, stored in checkpoints; independent of the number of ranks.

    Attributes:
        epoch: epoch of the next batch.
        position: index in that epoch of the first rank's next batch; an index beyond the epoch's end
            continues in the next epoch.
        batches: number of batches that each rank has consumed.
        total: number of batches that all ranks have consumed.
    """

    epoch: int = 0
    position: int = 0
    batches: int = 0
    total: int = 0


def plan_by_length(
    frames: NDArray[np.int64], budget: int, order: NDArray[np.int64] | None = None, count: int = 0
) -> list[NDArray[np.int64]]:
    """Divide utterances into batches of at most `budget` padded frames, or of `count` utterances.

    By default, the longest come first because they need the most memory: if it isn't enough, the work fails
    at once.

    Args:
        frames: [utterances] frames of each utterance.
        budget: maximum of longest utterance × number of utterances in a batch; an utterance longer than
            the budget forms a batch of its own.
        order: indices of utterances, with similar lengths next to each other; None: longest first, equal
            lengths in the given order.
        count: number of utterances in a batch, whatever their length; 0: `budget` decides.

    Returns:
        Index arrays, consecutive parts of `order`.
    """
    if order is None:
        order = np.argsort(-frames, kind="stable")
    if count:
        return np.split(order, range(count, len(order), count))
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
    """Return the fraction of padding among all frames of the batches, 0 … 1."""
    padded = sum(int(frames[batch].max()) * len(batch) for batch in batches)
    return 1.0 - float(frames.sum()) / max(padded, 1)


class BatchStream(Sampler[BatchPlan]):
    """One stream of the batches of successive epochs, reproducible on every rank and after a restart.

    The batches of an epoch are a function of (seed, epoch): utterances are sorted by length with jitter and
    divided into batches within the budget, and the batches are shuffled. All ranks plan the same epochs and
    take turns at their batches, across epochs, so that none is repeated or left out. Resuming from a cursor
    plans only the cursor's epoch.

    Args:
        frames: [utterances] frames of each utterance; or a function that returns them for an epoch, if
            utterances are joined differently in every epoch.
        budget: maximum number of padded frames in a batch.
        batches: length of this rank's stream, counted from its beginning.
        seed: random seed for the order.
        count: number of utterances in a batch; 0: `budget` decides.
        jitter: lengths are multiplied by 1 ± jitter before sorting, to vary the composition of batches.
        ranks: number of processes.
        rank: index of this process.
        start: cursor to resume from; it does not change `len()`.
    """

    def __init__(
        self,
        frames: NDArray[np.int64] | Callable[[int], NDArray[np.int64]],
        budget: int,
        batches: int,
        *,
        seed: int = 0,
        count: int = 0,
        jitter: float = 0.1,
        ranks: int = 1,
        rank: int = 0,
        start: Cursor | None = None,
    ) -> None:
        self.frames = frames if callable(frames) else lambda epoch: frames
        if len(self.frames(0)) == 0:
            raise UserError("there are no utterances to train on")
        self.budget = budget
        self.count = count
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
        first, turns = self.start.position, itertools.cycle(range(self.ranks))
        for epoch in itertools.count(self.start.epoch):
            batches = self.epoch(epoch)
            for position in range(first, len(batches)):
                if next(turns) == self.rank:
                    yield BatchPlan(tuple(batches[position].tolist()), epoch, position)
            first = max(0, first - len(batches))

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch, for all ranks."""
        random = np.random.default_rng([self.seed, epoch])
        frames = self.frames(epoch)
        noise = 1 + self.jitter * random.uniform(-1, 1, len(frames))
        order = np.argsort(frames * noise, kind="stable")
        plans = plan_by_length(frames, self.budget, order, self.count)
        return [plans[i] for i in random.permutation(len(plans))]


class NumberedPlans(Sampler[BatchPlan]):
    """A stream of batches that are functions of their number; ranks take turns.

    Args:
        batches: length of this rank's stream, counted from its beginning.
        ranks: number of processes.
        rank: index of this process.
        start: cursor to resume from; it does not change `len()`.
    """

    def __init__(self, batches: int, ranks: int = 1, rank: int = 0, start: Cursor | None = None) -> None:
        self.batches, self.ranks, self.rank, self.start = batches, ranks, rank, start or Cursor()

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[BatchPlan]:
        first = self.start.position + self.rank
        return (BatchPlan((), 0, first + i * self.ranks) for i in range(self.batches - self.start.batches))
