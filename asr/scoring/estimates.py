"""Values with their spread: intervals over seeds, ranges over repeats, and the Pareto front."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond them, the normal's.
T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Estimate:
    """A measured value with its spread.

    Attributes:
        value: mean of an error rate, median of a time.
        low, high: 95 % interval of an error rate, lowest and highest of several times; None if unknown.
        count: number of seeds or repeats.
        over: source of the spread: `seeds`, `utterances` or `repeats`.
    """

    value: float
    low: float | None
    high: float | None
    count: int
    over: str

    def level_with(self, other: "Estimate") -> bool:
        """Return whether the two ranges overlap: the measurement shows no difference.

        A value of unknown spread counts as a range of one point.
        """
        (low, high), (other_low, other_high) = self._range(), other._range()
        return low <= other_high and other_low <= high

    def _range(self) -> tuple[float, float]:
        if self.low is None or self.high is None:
            return self.value, self.value
        return self.low, self.high


def over_seeds(values: Sequence[float]) -> Estimate:
    """Return the mean with Student's 95 % interval of the mean.

    Example:
        >>> estimate = over_seeds([0.10, 0.11, 0.12])
        >>> round(estimate.value, 4), round(estimate.low, 4), round(estimate.high, 4)
        (0.11, 0.0852, 0.1348)
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, None, None, len(values), "seeds")
    freedom = len(values) - 1
    quantile = T_95[freedom - 1] if freedom <= len(T_95) else 1.96 + 2.4 / freedom
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values), "seeds")


def spread(values: Iterable[float | None], over: str) -> Estimate | None:
    """Return the median of the known values with the lowest and the highest; None if none is known.

    Args:
        values: times of repeats or seeds.
        over: `seeds` or `repeats`.

    Example:
        >>> spread([4.2, 4.0, None, 4.1], "repeats")
        Estimate(value=4.1, low=4.0, high=4.2, count=3, over='repeats')
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = (min(known), max(known)) if len(known) > 1 else (None, None)
    return Estimate(statistics.median(known), low, high, len(known), over)


def fastest(times: Mapping[str, Estimate]) -> list[str]:
    """Return the labels whose time is level with the lowest median, in order of their medians.

    Example:
        >>> fast, near, slow = (spread(x, "repeats") for x in ([4.0, 4.2], [4.1, 4.3], [5.0, 5.1]))
        >>> fastest({"slow": slow, "near": near, "fast": fast})
        ['fast', 'near']
    """
    order = sorted(times, key=lambda label: times[label].value)
    return [label for label in order if times[label].level_with(times[order[0]])]


def dominates(one: tuple[Estimate, Estimate], other: tuple[Estimate, Estimate]) -> bool:
    """Return whether a model dominates another one.

    It does if it is not slower (a level time will do), its mean error rate is not higher, and the difference
    in time or in error rate exceeds the spread.

    Args:
        one, other: (time, error rate) of a model.
    """
    (time, error), (other_time, other_error) = one, other
    level_times = time.level_with(other_time)
    if error.value > other_error.value or (time.value > other_time.value and not level_times):
        return False
    return not (level_times and error.level_with(other_error))


def pareto_front(points: Sequence[tuple[Estimate, Estimate]]) -> list[int]:
    """Return the indices of the (time, error rate) points that no other one `dominates`, the fastest first.

    Example:
        >>> times, errors = (3.0, 1.0, 2.0, 2.0), (0.1, 0.3, 0.4, 0.2)
        >>> pareto_front([(spread([t], "repeats"), over_seeds([e])) for t, e in zip(times, errors)])
        [1, 3, 0]
    """
    front = [i for i, point in enumerate(points) if not any(dominates(other, point) for other in points)]
    return sorted(front, key=lambda i: (points[i][0].value, points[i][1].value))
