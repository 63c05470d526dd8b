"""Means over seeds with their intervals, and what is best at its cost."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t for 1 … 30 degrees of freedom; above them, the normal's.
T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval.

    Attributes:
        mean: over the seeds.
        low, high: the interval; None where it can't be told.
        count: seeds.
        over: what varies: `seeds` or `utterances`.
    """

    mean: float
    low: float | None
    high: float | None
    count: int
    over: str


def over_seeds(values: Sequence[float]) -> Estimate:
    """Return mean and Student's 95 % interval of the mean.

    Example:
        >>> estimate = over_seeds([0.10, 0.11, 0.12])
        >>> round(estimate.mean, 4), round(estimate.low, 4), round(estimate.high, 4)
        (0.11, 0.0852, 0.1348)
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, None, None, len(values), "seeds")
    freedom = len(values) - 1
    quantile = T_95[freedom - 1] if freedom <= len(T_95) else 1.96
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values), "seeds")


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points that no other one beats in both coordinates, cheapest first.

    Args:
        points: (cost, error), lower is better in both.

    Example:
        >>> pareto_front([(3.0, 0.1), (1.0, 0.3), (2.0, 0.4), (2.0, 0.2)])
        [1, 3, 0]
    """
    front: list[int] = []
    best = math.inf
    for i in sorted(range(len(points)), key=lambda i: points[i]):
        if points[i][1] < best:
            front.append(i)
            best = points[i][1]
    return front
