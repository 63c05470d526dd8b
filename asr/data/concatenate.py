"""Join utterances with pauses into longer training examples, differently in every epoch."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Group = tuple[int, ...]

# Pauses are like those between sentences in a quiet room: digital silence would have unnatural features.
PAUSE_S = (0.2, 1.2)  # shortest and longest pause
# Range of the noise level, relative to the level of the utterances, which may be quiet: −80 … −40 dB.
PAUSE_LEVEL = (1e-4, 1e-2)
ORDER, PAUSES = range(2)  # random streams


class Concatenation:
    """Groups of utterances to join in an epoch, a function of (seed, epoch).

    Utterances are shuffled and joined in that order; each occurs once in an epoch. The maximum length of
    a group is drawn uniformly below the limit, so training sees single utterances as well as groups of all
    lengths up to the limit.

    Args:
        durations_s: duration of each utterance.
        limit_s: maximum duration of a group including pauses, above 0; longer utterances stay alone.
        seed: random seed for order and group lengths.
        growth_epochs: number of epochs in which the limit grows linearly from 0 (no utterances are joined) in
            epoch 0 to `limit_s`; 0: `limit_s` in every epoch.

    Example:
        >>> Concatenation([2.0, 3.0, 4.0, 2.0], limit_s=10.0, seed=1).groups(epoch=0)
        [(0,), (1, 2), (3,)]
    """

    def __init__(
        self,
        durations_s: Sequence[float] | NDArray[np.float64],
        limit_s: float,
        seed: int,
        growth_epochs: int = 0,
    ) -> None:
        self.durations_s = np.asarray(durations_s, dtype=np.float64)
        self.limit_s = limit_s
        self.seed = seed
        self.growth_epochs = growth_epochs
        self._latest: tuple[int, list[Group]] = (-1, [])

    def limit_of(self, epoch: int) -> float:
        """Return the maximum duration in seconds of a group in an epoch.

        Example:
            >>> joined = Concatenation([2.0, 3.0], limit_s=30.0, seed=1, growth_epochs=3)
            >>> [joined.limit_of(epoch) for epoch in range(5)]
            [0.0, 10.0, 20.0, 30.0, 30.0]
        """
        # By epochs, not steps or time, so that batches remain functions of (seed, epoch): any number of ranks
        # and a resumed run plan the same batches.
        return self.limit_s * min(1.0, epoch / self.growth_epochs) if self.growth_epochs else self.limit_s

    def groups(self, epoch: int) -> list[Group]:
        """Return the groups of an epoch: utterance indices in the order in which they are joined."""
        if self._latest[0] != epoch:
            self._latest = epoch, self._draw(epoch)
        return self._latest[1]

    def _draw(self, epoch: int) -> list[Group]:
        random = np.random.default_rng([self.seed, epoch, ORDER])
        limit_s = self.limit_of(epoch)
        groups: list[Group] = []
        group: list[int] = []
        room_s = 0.0
        for i in random.permutation(len(self.durations_s)).tolist():
            needed_s = self.durations_s[i] + PAUSE_S[1]
            if group and needed_s > room_s:
                groups.append(tuple(group))
                group = []
            if not group:
                room_s = random.uniform(0.0, limit_s)
            group.append(i)
            room_s -= needed_s
        return [*groups, tuple(group)]

    def durations(self, epoch: int) -> NDArray[np.float64]:
        """Return the duration of each group of an epoch in seconds, with pauses of maximum length."""
        groups = self.groups(epoch)
        counts = np.array([len(group) for group in groups])
        order = np.fromiter(itertools.chain.from_iterable(groups), np.int64)
        sums_s = np.add.reduceat(self.durations_s[order], np.cumsum(counts) - counts)
        return sums_s + PAUSE_S[1] * (counts - 1)


def packed(durations_s: Sequence[float], limit_s: float, pause_s: float) -> list[list[int]]:
    """Return groups of utterances that nearly fill the limit, by first-fit decreasing bin packing.

    Args:
        durations_s: duration of each utterance.
        limit_s: maximum duration of a group including pauses; longer utterances stay alone.
        pause_s: pause between utterances.

    Returns:
        The utterances' indices, in ascending order.

    Example:
        >>> packed([2.0, 3.0, 5.0, 1.0], limit_s=6.0, pause_s=0.5)
        [[0, 1], [2], [3]]
    """
    groups: list[tuple[float, list[int]]] = []
    for index in sorted(range(len(durations_s)), key=lambda index: -durations_s[index]):
        need_s = durations_s[index] + pause_s
        place = next((i for i, (room_s, _) in enumerate(groups) if need_s <= room_s), None)
        if place is None:
            groups.append((limit_s + pause_s - need_s, [index]))
        else:
            groups[place] = groups[place][0] - need_s, [*groups[place][1], index]
    return sorted(sorted(group) for _, group in groups)


def join(
    parts: Sequence[NDArray[np.float32]],
    sample_rate: int,
    *,
    seed: int,
    epoch: int,
    group: Group,
    pause_s: tuple[float, float] = PAUSE_S,
) -> NDArray[np.float32]:
    """Join the samples of a group with pauses of quiet noise, a function of (seed, epoch, group).

    `pause_s` is the range of pause durations in seconds.
    """
    random = np.random.default_rng([seed, epoch, PAUSES, *group])
    energy = sum(float(np.vdot(part, part)) for part in parts)
    level = np.sqrt(energy / max(1, sum(map(len, parts))))
    joined = list(parts[:1])
    for part in parts[1:]:
        samples = round(random.uniform(*pause_s) * sample_rate)
        amplitude = level * np.exp(random.uniform(*np.log(PAUSE_LEVEL)))
        joined += [(amplitude * random.standard_normal(samples)).astype(np.float32), part]
    return np.concatenate(joined)
