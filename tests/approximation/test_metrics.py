"""Scores against independent implementations, and the bootstrap."""

import numpy as np
import pytest

from asr.approximation.metrics import METRICS, bootstrap_scores, ratio_interval
from asr.scoring.error_rates import bootstrap_interval
from asr.scoring.estimates import percentiles

RANDOM = np.random.default_rng(0)
LABELS = [RANDOM.integers(0, 2, size=(2, n)).astype(float) for n in (2, 7, 100)]
NUMBERS = [RANDOM.normal(size=(2, n)).round(1) for n in (3, 50, 200)]  # rounded: with ties


@pytest.mark.parametrize("values", LABELS, ids=len)
@pytest.mark.parametrize(
    ("name", "function"),
    [("accuracy", "accuracy_score"), ("F1", "f1_score"), ("Matthews", "matthews_corrcoef")],
)
def test_scores_of_classes_equal_scikit_learns(name: str, function: str, values: np.ndarray) -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="comes with the extra `test`")
    predicted, true = values
    assert METRICS[name](predicted, true) == pytest.approx(getattr(sklearn, function)(true, predicted))


@pytest.mark.parametrize("values", NUMBERS, ids=len)
@pytest.mark.parametrize(("name", "function"), [("Pearson", "pearsonr"), ("Spearman", "spearmanr")])
def test_correlations_equal_scipys(name: str, function: str, values: np.ndarray) -> None:
    stats = pytest.importorskip("scipy.stats", reason="comes with the extra `test`")
    predicted, true = values
    assert METRICS[name](predicted, true) == pytest.approx(getattr(stats, function)(predicted, true)[0])


def test_matthews_by_hand() -> None:
    """Three true positives, one true negative, two false positives, one false negative."""
    predicted, true = np.array([1, 1, 1, 0, 1, 1, 0.0]), np.array([1, 1, 1, 0, 0, 0, 1.0])
    assert METRICS["Matthews"](predicted, true) == pytest.approx((3 * 1 - 2 * 1) / (5 * 4 * 3 * 2) ** 0.5)


def test_constant_predictions_score_zero() -> None:
    constant, true = np.zeros(4), np.array([0, 1, 1, 0.0])
    assert [METRICS[name](constant, true) for name in ("F1", "Matthews", "Pearson", "Spearman")] == [0.0] * 4


def test_the_interval_is_that_of_pooled_rates() -> None:
    right = RANDOM.integers(0, 2, size=300)
    groups = [np.array([i]) for i in range(300)]
    low, high = percentiles(bootstrap_scores(lambda drawn: float(right[drawn].mean()), groups, 4000, 1))
    expected = bootstrap_interval(right, np.ones(300), samples=4000, seed=2)
    assert (low, high) == pytest.approx(expected, abs=0.01)


def test_examples_of_one_text_are_drawn_together() -> None:
    """Ten questions with the same outcome on one context are one piece of evidence, not ten."""
    values = np.repeat(RANDOM.integers(0, 2, size=20), 10).astype(float)
    together = [np.arange(10 * i, 10 * i + 10) for i in range(20)]
    alone = [np.array([i]) for i in range(200)]
    spreads = [
        np.std(bootstrap_scores(lambda x: float(values[x].mean()), groups, 500, 0))
        for groups in (together, alone)
    ]
    assert spreads[0] > 2 * spreads[1]


def test_ratios_are_paired() -> None:
    """Half of another system's score on every draw is a ratio of exactly one half."""
    scores = RANDOM.uniform(0.5, 1, size=100)
    assert ratio_interval(scores / 2, scores) == pytest.approx((0.5, 0.5))
    assert ratio_interval(scores, scores - scores.min()) is None
