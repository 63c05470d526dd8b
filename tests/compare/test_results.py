"""Results: to JSON and back, as CSV, means over seeds, the Pareto front."""

import csv
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.compare.collect import rates_of
from asr.compare.estimates import over_seeds, pareto_front
from asr.compare.records import Candidate, CurvePoint, Evaluation, Failure, Split, Training
from asr.compare.results import Results
from asr.compare.results_file import read_results, without_times, write_results
from asr.errors import UserError


def rate(value: float) -> dict[str, object]:
    return {
        "rate": value,
        "interval": [value - 0.01, value + 0.01],
        "substitutions": 1,
        "deletions": 0,
        "insertions": 2,
        "length": 100,
    }


def sample() -> Results:
    candidates = [
        Candidate("full", "full", "full", None, 4, 4, {}, None, [0, 1]),
        Candidate("i-clustered-25", "i-clustered-25", "i-clustered", 25, 4, 4, {}, None, [0]),
    ]
    curve = [CurvePoint(10, 1.0, 5.0, 4.0, 2.0, 1.9, 0.2)]
    trainings = [
        Training("full", 0, "runs/full-0", "done", curve=curve, train_s=5.0),
        Training("full", 1, "runs/full-1", "done"),
        Training("i-clustered-25", 0, "runs/i", "failed", "out of memory"),
    ]
    evaluations = [
        Evaluation(
            "full", 0, "test", "full", "greedy", "e/0", "done", rates={"per": rate(0.1)}, forward_s=2.0
        ),
        Evaluation("full", 1, "test", "full", "greedy", "e/1", "done", rates={"per": rate(0.12)}),
        Evaluation("full", 0, "test", "clustered-25", "greedy", "e/2", "done", rates={"per": rate(0.3)}),
        Evaluation("i-clustered-25", 0, "test", "i-clustered-25", "greedy", "e/3", "missing"),
    ]
    data = {"test": Split("data/demo/test.cuts.jsonl.gz", "0123", 8, 0.1, {"0.5": 200})}
    failures = [Failure("train/i-clustered-25-0", "i-clustered-25", 0, "out of memory", "cells/x.log")]
    return Results(
        ["asr", "compare"],
        "demo",
        "2026-01-01T00:00:00Z",
        {},
        {},
        data,
        candidates,
        trainings,
        evaluations,
        failures,
    )


def test_results_come_back_from_json(tmp_path: Path) -> None:
    write_results(sample(), tmp_path)
    assert read_results(tmp_path) == sample()


def test_the_csv_has_a_row_for_each_evaluation_with_its_training(tmp_path: Path) -> None:
    write_results(sample(), tmp_path)
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["candidate"] for row in rows] == ["full", "full", "full", "i-clustered-25"]
    assert float(rows[0]["per"]) == 0.1
    assert float(rows[0]["training_train_s"]) == 5.0
    assert rows[3]["training_error"] == "out of memory"


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(UserError, match="format 1, found 99"):
        read_results(tmp_path)
    with pytest.raises(UserError, match=r"nowhere\.json"):
        read_results(tmp_path / "nowhere.json")


def test_official_scores_are_error_rates_of_their_own() -> None:
    found = {"utterances": 3, "wer": rate(0.2), "official": {"all": rate(0.1), "swbd": rate(0.05)}}
    assert list(rates_of(found)) == ["wer", "official", "official-swbd"]
    results = sample()
    results.evaluations[0].rates = rates_of(found)
    assert results.metrics() == ["per", "wer", "official", "official-swbd"]
    results.protocol = {"decoder": "beam"}
    assert results.metrics("test")[:2] == ["official", "wer"]


def test_times_are_stripped_at_every_depth() -> None:
    kept = json.dumps(without_times(asdict(sample())))
    assert '"train_s"' not in kept
    assert '"forward_s"' not in kept
    assert '"created"' not in kept
    assert '"dev_error": 0.2' in kept


def test_rates_over_seeds_and_over_utterances() -> None:
    results = sample()
    both = results.error_rate("full", "test", "per")
    assert both is not None
    assert both.mean == pytest.approx(0.11)
    assert both.over == "seeds"
    assert both.high == pytest.approx(0.11 + 12.706 * 0.01)
    single = results.error_rate("full", "test", "per", "clustered-25")
    assert single is not None
    assert (single.over, single.low, single.count) == ("utterances", pytest.approx(0.29), 1)
    assert results.error_rate("i-clustered-25", "test", "per") is None
    assert results.forward_s("full", "test") == 2.0
    assert [results.is_own(x) for x in results.evaluations] == [True, True, False, True]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_the_front_holds_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    front = pareto_front(points)

    def beaten(a: tuple[int, int]) -> bool:
        return any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in points)

    assert {points[i] for i in front} == {point for point in points if not beaten(point)}
    assert sorted(front, key=lambda i: points[i]) == front


def test_the_interval_covers_the_mean_at_its_rate() -> None:
    """Student's interval of three normal values covers their mean in 95 % of the cases."""
    import numpy as np

    draws = np.random.default_rng(0).standard_normal((4000, 3))
    hits = [
        e.low <= 0 <= e.high
        for e in map(over_seeds, draws.tolist())
        if e.low is not None and e.high is not None
    ]
    assert 0.94 < sum(hits) / len(hits) < 0.96
