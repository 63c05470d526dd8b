"""Scores against independent implementations, on each draw of the bootstrap as well."""

import numpy as np
import pytest
from asr_recipes.questions.metrics import METRICS
from asr_recipes.questions.workload import drawn_score

from asr.scoring.statistics import bootstrap

RANDOM = np.random.default_rng(0)
LABELS = [RANDOM.integers(0, 2, size=(2, n)).astype(float) for n in (2, 7, 100)]
NUMBERS = [RANDOM.normal(size=(2, n)).round(1) for n in (3, 50, 200)]  # rounded: with ties


@pytest.mark.parametrize("values", LABELS, ids=len)
@pytest.mark.parametrize(
    ("name", "function"),
    [("accuracy", "accuracy_score"), ("f1", "f1_score"), ("matthews", "matthews_corrcoef")],
)
def test_scores_of_classes_equal_scikit_learns(name: str, function: str, values: np.ndarray) -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="comes with the extra `test`")
    predicted, true = values
    assert METRICS[name](predicted, true) == pytest.approx(getattr(sklearn, function)(true, predicted))


@pytest.mark.parametrize("values", NUMBERS, ids=len)
@pytest.mark.parametrize(("name", "function"), [("pearson", "pearsonr"), ("spearman", "spearmanr")])
def test_correlations_equal_scipys(name: str, function: str, values: np.ndarray) -> None:
    stats = pytest.importorskip("scipy.stats", reason="comes with the extra `test`")
    predicted, true = values
    assert METRICS[name](predicted, true) == pytest.approx(getattr(stats, function)(predicted, true)[0])


def test_matthews_by_hand() -> None:
    """Three true positives, one true negative, two false positives, one false negative."""
    predicted, true = np.array([1, 1, 1, 0, 1, 1, 0.0]), np.array([1, 1, 1, 0, 0, 0, 1.0])
    assert METRICS["matthews"](predicted, true) == pytest.approx((3 * 1 - 2 * 1) / (5 * 4 * 3 * 2) ** 0.5)


def test_constant_predictions_score_zero() -> None:
    constant, true = np.zeros(4), np.array([0, 1, 1, 0.0])
    assert [METRICS[name](constant, true) for name in ("f1", "matthews", "pearson", "spearman")] == [0.0] * 4


def test_each_draw_is_scored_alone() -> None:
    predicted, true = LABELS[2]
    draws: list[np.ndarray] = []

    def kept(drawn: np.ndarray) -> np.ndarray:
        draws.extend(drawn)
        return drawn_score(METRICS["f1"], predicted, true)(drawn)

    values = bootstrap(kept, 100, 20, 0)
    assert values.tolist() == [METRICS["f1"](predicted[row], true[row]) for row in draws]
