"""Scores of GLUE's tasks."""

from collections.abc import Callable

import numpy as np

from asr.scoring.statistics import Values

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
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}
