"""Scores of GLUE's tasks, their bootstrap intervals, and ratios of two systems."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from asr.scoring import estimates
from asr.scoring.estimates import Interval, Values, percentiles

Metric = Callable[[Values, Values], float]


def accuracy(predicted: Values, true: Values) -> float:
    """Return the share of equal labels."""
    return float((predicted == true).mean())


def f1(predicted: Values, true: Values) -> float:
    """Return the F1 score of class 1; 0 if neither has it."""
    both = float(((predicted == 1) & (true == 1)).sum())
    either = float((predicted == 1).sum() + (true == 1).sum())
    return 2 * both / either if either else 0.0


def matthews(predicted: Values, true: Values) -> float:
    """Return Matthews' correlation of two classes (1975): Pearson's of the labels; 0 if one is constant."""
    return pearson(predicted, true)


def pearson(predicted: Values, true: Values) -> float:
    """Return Pearson's correlation; 0 if one side is constant."""
    x, y = predicted - predicted.mean(), true - true.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / scale) if scale > 0 else 0.0


def spearman(predicted: Values, true: Values) -> float:
    """Return Spearman's rank correlation, with mean ranks for ties; 0 if one side is constant."""
    return pearson(_ranks(predicted), _ranks(true))


def _ranks(values: Values) -> Values:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((2 * last - counts - 1) / 2)[inverse]


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "F1": f1,
    "Matthews": matthews,
    "Pearson": pearson,
    "Spearman": spearman,
}


def bootstrap_scores(
    score: Callable[[NDArray[np.intp]], float], groups: Sequence[NDArray[np.intp]], samples: int, seed: int
) -> Values:
    """Return the scores of `samples` sets of examples drawn with replacement.

    Args:
        score: function of the indices of the examples drawn.
        groups: indices of examples that are drawn together, because they share a text.
        samples: number of sets; the same seed draws the same sets, for paired comparisons.
        seed: random seed.
    """
    alone = all(len(group) == 1 for group in groups)

    def scores(drawn: NDArray[np.intp]) -> Values:
        rows = drawn if alone else (np.concatenate([groups[i] for i in row]) for row in drawn)
        return np.array([score(row) for row in rows])

    return estimates.bootstrap(scores, len(groups), samples, seed)


def ratio_interval(scores: Values, baseline: Values) -> Interval | None:
    """Return the 95 % interval of the ratio of paired scores; None if the baseline isn't always positive."""
    return percentiles(scores / baseline) if (baseline > 0).all() else None
