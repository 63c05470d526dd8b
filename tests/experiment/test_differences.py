"""Paired differences: their interval, which systems are paired, and over what."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asr.experiment.differences import Measured, differences
from asr.experiment.records import Candidate, Evaluation, ItemErrors, SplitData
from asr.experiment.results import Results, read_results, write_results
from asr.scoring.statistics import over_seeds, paired_difference

LENGTHS = [10.0, 20, 5, 15]


def measured(label: str, attention: str, seed: int, errors: list[float], metric: str = "per") -> Measured:
    rates = {metric: {"rate": sum(errors) / sum(LENGTHS), "interval": None}}
    evaluation = Evaluation(label, seed, "test", attention, "greedy", "", "done", rates=rates)
    return evaluation, ItemErrors({metric: errors}, {metric: LENGTHS})


def compared(found: list[Measured]) -> Results:
    labels = dict.fromkeys(x.candidate for x, _ in found)
    candidates = [Candidate(x, x, x, None, 4, 4, {}, None, [0, 1]) for x in labels]
    data = {"test": SplitData("test.cuts.jsonl.gz", "0123", 4, 0.1, {"0.5": 200})}
    results = Results(
        *(["asr", "compare"], "demo", "2026-01-01T00:00:00Z", {}, {}, data, candidates),
        *([], [x for x, _ in found], []),
    )
    return replace(results, differences=differences(results, found))


TWO_SEEDS = [
    measured("full", "full", 0, [1, 2, 0, 1]),
    measured("full", "full", 1, [1, 3, 1, 1]),
    measured("local-8", "local-8", 1, [2, 3, 1, 3]),
    measured("local-8", "local-8", 0, [2, 4, 1, 2]),
    measured("local-8", "local-8", 2, [9, 9, 9, 9]),
    measured("full", "local-8", 0, [5, 5, 5, 5]),
]


def test_systems_are_paired_over_common_seeds_and_utterances(tmp_path: Path) -> None:
    results = compared(TWO_SEEDS)
    pairs = [(x.first, x.second) for x in results.differences]
    full, local = ("full", "full"), ("local-8", "local-8")
    assert pairs == [(full, local), (("full", "local-8"), full)]
    found = results.difference(local, full, "test", "per")
    expected = paired_difference(np.array([[1.0, 2, 1, 1], [1, 0, 0, 2]]), np.array(LENGTHS))
    assert found is not None
    assert (found.value, found.interval) == (pytest.approx(8 / 100), pytest.approx(expected.interval))
    assert (found.count, found.over) == (2, "seeds and utterances")
    exchanged = results.difference(("full", "local-8"), full, "test", "per")
    assert exchanged is not None
    assert (exchanged.value, exchanged.count, exchanged.over) == (pytest.approx(16 / 50), 1, "utterances")
    assert results.difference(("full", "local-8"), local, "test", "per") is None
    write_results(results, tmp_path)
    assert read_results(tmp_path) == results


def test_all_mechanisms_of_one_model_are_paired() -> None:
    """A claim such as "i-clustered is closer than clustered" needs the two exchanged systems' difference."""
    exchanged = [measured("full", name, 0, [2, 2, count, 2]) for name, count in (("a", 2), ("b", 4))]
    results = compared([*TWO_SEEDS[:2], *exchanged])
    a, b, own = ("full", "a"), ("full", "b"), ("full", "full")
    assert [(x.first, x.second) for x in results.differences] == [(a, b), (a, own), (b, own)]
    found = results.difference(b, a, "test", "per")
    assert found is not None
    assert (found.value, found.over) == (pytest.approx(2 / 50), "utterances")


def test_official_rates_and_other_items_are_paired_over_seeds() -> None:
    official = [
        (x, ItemErrors())
        for x, _ in (
            measured(a, a, seed, [1.0, seed, a == "b", 0], "official") for a in "ab" for seed in range(3)
        )
    ]
    [found] = compared(official).differences
    assert found.estimate.over == "seeds"
    assert found.estimate.interval == pytest.approx(over_seeds([-1 / 50] * 3).interval)
    other = [measured(a, a, seed, [1.0, seed, a == "b", 0]) for a in "ab" for seed in range(3)]
    by_seed = [(x, replace(y, lengths={"per": [10.0, 20, 5 + x.seed, 15 - x.seed]})) for x, y in other]
    [found] = compared(by_seed).differences
    assert (found.estimate.over, found.estimate.count) == ("seeds", 3)


def test_without_a_common_seed_there_is_no_difference_and_no_verdict() -> None:
    results = compared([measured("a", "a", 0, [0, 0, 0, 0]), measured("b", "b", 1, [9, 9, 9, 9])])
    assert results.differences == []
    assert results.level(("a", "a"), ("b", "b"), "test", "per")


def test_one_seed_and_one_utterance_have_no_interval() -> None:
    found = paired_difference(np.array([[3.0]]), np.array([10.0]))
    assert (found.value, found.interval, found.over) == (0.3, None, "")


def test_equal_systems_differ_by_nothing() -> None:
    found = paired_difference(np.zeros((3, 5)), np.ones(5))
    assert (found.value, found.interval) == (0.0, (0.0, 0.0))


@pytest.mark.parametrize(("seeds", "utterances"), [(3, 40), (5, 200), (3, 4)])
@pytest.mark.parametrize(
    ("by_seed", "by_utterance", "by_both"), [(1, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 1)]
)
def test_the_interval_covers_the_difference(
    seeds: int, utterances: int, by_seed: float, by_utterance: float, by_both: float
) -> None:
    """Of simulated experiments with new seeds and new utterances, at least 95 % cover the true difference."""
    random = np.random.default_rng(0)
    hits, draws = 0, 1500
    for _ in range(draws):
        errors = by_seed * random.standard_normal((seeds, 1)) / utterances**0.5
        errors = errors + by_utterance * random.standard_normal((1, utterances))
        errors = errors + by_both * random.standard_normal((seeds, utterances))
        low, high = paired_difference(errors, np.ones(utterances)).interval or (1, 0)
        hits += low <= 0 <= high
    assert hits / draws > 0.935  # three standard errors below
