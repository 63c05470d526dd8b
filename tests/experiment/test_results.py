"""Results: JSON and CSV, means over seeds, level times, the Pareto front, timing conditions."""

import csv
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from asr.console import Table
from asr.errors import UserError
from asr.experiment.records import Candidate, Conditions, CurvePoint, Evaluation, Failure, SplitData, Training
from asr.experiment.results import Results, read_results, write_results
from asr.experiment.speech import rates_of
from asr.experiment.timing import OtherProcesses
from asr.report.summary import print_results
from asr.report.tables import costs, outcome
from asr.report.words import conditions_words, duration_range
from asr.scoring.statistics import Estimate, fastest, over_seeds, pareto_front, spread

QUIET = Conditions("cpu", 1, wall_s=10.0, cpu_s=9.97, other_cpus=0.03)


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
            *("full", 0, "test", "full", "greedy", "e/0", "done"),
            rates={"per": rate(0.1)},
            forward_s=2.0,
            forward_cpu_s=1.8,
            forward_repeats_s=[1.9, 2.2, 2.0],
            forward_cpu_repeats_s=[1.8, 1.8, 1.7],
        ),
        Evaluation("full", 1, "test", "full", "greedy", "e/1", "done", rates={"per": rate(0.12)}),
        Evaluation("full", 0, "test", "clustered-25", "greedy", "e/2", "done", rates={"per": rate(0.3)}),
        Evaluation("i-clustered-25", 0, "test", "i-clustered-25", "greedy", "e/3", "missing"),
    ]
    data = {"test": SplitData("data/demo/test.cuts.jsonl.gz", "0123", 8, 0.1, {"0.5": 200})}
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
        {"test": QUIET},
    )


def exactly(value: float) -> Estimate:
    return Estimate(value, None, None, 1, "repeats")


def test_results_come_back_from_json(tmp_path: Path) -> None:
    write_results(sample(), tmp_path)
    assert read_results(tmp_path) == sample()


def test_the_csv_has_a_row_for_each_evaluation_with_its_training(tmp_path: Path) -> None:
    write_results(sample(), tmp_path)
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["candidate"] for row in rows] == ["full", "full", "full", "i-clustered-25"]
    assert float(rows[0]["per"]) == 0.1
    assert [float(rows[0][f"forward_{name}"]) for name in ("s", "low_s", "high_s")] == [2.0, 1.9, 2.2]
    assert float(rows[0]["training_train_s"]) == 5.0
    assert rows[3]["training_error"] == "out of memory"


def test_the_csv_of_a_recipe_without_recordings_has_a_row_for_each_training(tmp_path: Path) -> None:
    """The table was empty."""
    results = sample()
    results.evaluations = []
    write_results(results, tmp_path)
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = [(row["candidate"], row["seed"], row["training_status"]) for row in rows]
    assert found == [("full", "0", "done"), ("full", "1", "done"), ("i-clustered-25", "0", "failed")]


def test_the_csv_of_a_model_that_was_not_trained_here_has_its_evaluations(tmp_path: Path) -> None:
    """The table of an exchange was empty."""
    results = sample()
    results.trainings = []
    write_results(results, tmp_path)
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["candidate"], row["seed"], row["variant"], row["per"]) for row in rows] == [
        ("full", "0", "full", "0.1"),
        ("full", "0", "clustered-25", "0.3"),
        ("full", "1", "full", "0.12"),
        ("i-clustered-25", "0", "i-clustered-25", ""),
    ]


def test_another_format_and_changed_results_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(UserError, match="format 2, found 99"):
        read_results(tmp_path)
    with pytest.raises(UserError, match=r"nowhere\.json"):
        read_results(tmp_path / "nowhere.json")
    write_results(sample(), tmp_path)
    text = (tmp_path / "results.json").read_text()
    (tmp_path / "results.json").write_text(text.replace("0.3", "0.2", 1))
    with pytest.raises(UserError, match=r"results\.json: damaged"):
        read_results(tmp_path)


def test_official_scores_are_separate_error_rates() -> None:
    found = {"utterances": 3, "wer": rate(0.2), "official": {"all": rate(0.1), "swbd": rate(0.05)}}
    assert list(rates_of(found)) == ["wer", "official", "official-swbd"]
    results = sample()
    results.evaluations[0].rates = rates_of(found)
    assert results.metrics() == ["per", "wer", "official", "official-swbd"]
    results.protocol = {"metric": "official"}
    assert results.metrics("test")[0] == "official"


def test_rates_over_seeds_and_over_utterances() -> None:
    results = sample()
    both = results.error_rate("full", "test", "per")
    assert both is not None
    assert both.value == pytest.approx(0.11)
    assert both.over == "seeds"
    assert both.high == pytest.approx(0.11 + 12.706 * 0.01)
    single = results.error_rate("full", "test", "per", "clustered-25")
    assert single is not None
    assert (single.over, single.low, single.count) == ("utterances", pytest.approx(0.29), 1)
    assert results.error_rate("i-clustered-25", "test", "per") is None
    assert results.forward_time("full", "test") == Estimate(2.0, 1.9, 2.2, 3, "repeats")
    results.protocol["clock"] = "cpu"
    assert results.forward_time("full", "test") == Estimate(1.8, 1.7, 1.8, 3, "repeats")
    assert results.forward_time("full", "test", "clustered-25") is None
    assert [results.is_own(x) for x in results.evaluations] == [True, True, False, True]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_the_front_holds_what_nothing_dominates(points: list[tuple[int, int]]) -> None:
    by_label = {str(i): point for i, point in enumerate(points)}
    exact = {label: (exactly(time), error) for label, (time, error) in by_label.items()}
    front = [int(x) for x in pareto_front(exact, lambda one, other: by_label[one][1] == by_label[other][1])]

    def dominated(a: tuple[int, int]) -> bool:
        return any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in points)

    assert {points[i] for i in front} == {point for point in points if not dominated(point)}
    assert sorted(front, key=lambda i: points[i]) == front


def test_the_interval_covers_the_mean_at_its_rate() -> None:
    """Student's interval of three normal values covers their mean in 95 % of the cases."""
    draws = np.random.default_rng(0).standard_normal((4000, 3))
    hits = [
        e.low <= 0 <= e.high
        for e in map(over_seeds, draws.tolist())
        if e.low is not None and e.high is not None
    ]
    assert 0.94 < sum(hits) / len(hits) < 0.96


def test_overlapping_repeats_are_level() -> None:
    """A report once named a model the fastest that was ahead by 0.2 %, far less than its repeats differed."""
    repeats = ([4.00, 4.10, 4.05], [4.01, 4.06, 4.11], [4.2, 4.3, 4.4])
    one, other, slow = (spread(times, "repeats") for times in repeats)
    assert one.level_with(other)
    assert other.level_with(one)
    assert not one.level_with(slow)
    assert fastest({"slow": slow, "other": other, "one": one}) == ["one", "other"]
    assert fastest({"slow": slow, "one": one}) == ["one"]
    assert spread([None], "seeds") is None
    assert spread([1.0, None], "seeds") == Estimate(1.0, None, None, 1, "seeds")


def test_a_level_time_does_not_put_a_model_on_the_front() -> None:
    fast, level = Estimate(4.0, 3.9, 4.2, 3, "repeats"), Estimate(4.1, 4.0, 4.3, 3, "repeats")
    slow = exactly(9.0)

    def front(first: tuple[Estimate, float], second: tuple[Estimate, float]) -> str:
        errors = {"a": first[1], "b": second[1]}
        points = {"a": first, "b": second}
        return "".join(pareto_front(points, lambda one, other: abs(errors[one] - errors[other]) < 0.01))

    assert front((fast, 0.3), (level, 0.1)) == "b"  # no faster, and less accurate
    assert front((fast, 0.105), (level, 0.1)) == "ab"  # level in both
    assert front((slow, 0.1), (fast, 0.3)) == "ba"  # clearly different times
    assert front((slow, 0.105), (fast, 0.1)) == "b"


def test_what_is_off_the_front_rules_out_no_other_model() -> None:
    """The fastest of a chain of level times was beaten by one that a third, slower one beat."""
    times = {"a": (1.05, 1.0, 1.1), "b": (1.14, 1.08, 1.2), "c": (1.24, 1.18, 1.3)}
    errors = {"a": 0.3, "b": 0.2, "c": 0.1}
    points = {label: (Estimate(*time, 3, "repeats"), errors[label]) for label, time in times.items()}
    assert pareto_front(points, lambda one, other: False) == ["a", "c"]


def test_a_range_names_its_unit_once_if_it_can() -> None:
    ranges = [[4.0, 4.2], [0.9, 1.1], [59.0, 61.0], [100.0, 130.0], [4.0], [4.0, 4.001]]
    found = [duration_range(estimate) for x in ranges if (estimate := spread(x, "repeats"))]
    assert found == ["4.00 … 4.20 s", "900 ms … 1.10 s", "59.0 … 61.0 s", "1 min 40 s … 2 min 10 s", "", ""]


@pytest.mark.parametrize(
    ("conditions", "busy", "words"),
    [
        (QUIET, False, "were timed with 1 thread on a quiet machine"),
        (Conditions("cpu", 1, 10.0, 7.1, 0.0), True, "the timing process was on a CPU for 71 % of the time"),
        (Conditions("cpu", 1, 10.0, 9.99, 1.3), True, "other processes kept 1.3 CPUs busy"),
        (Conditions("cpu", 1, 10.0, 7.1, None), True, "on a busy machine"),
        (Conditions("cpu", 4, 10.0, 21.0, 0.1), False, "were timed with 4 threads on a quiet machine"),
        (Conditions("cuda", 2, 10.0, 4.0, 0.1), False, "were timed on cuda on a quiet machine"),
        (Conditions("cpu", 4, 10.0, 21.0, None), False, "the load on the machine is unknown"),
    ],
)
def test_a_busy_machine_is_reported(conditions: Conditions, busy: bool, words: str) -> None:
    sentence = conditions_words("test", conditions)
    assert conditions.busy() == busy
    assert words in sentence
    assert ("busy machine" in sentence) == busy


def test_the_summary_mentions_a_busy_machine_and_marks_level_times() -> None:
    results = sample()
    results.protocol["budget"] = "10 steps"

    def shown() -> str:
        console = Console(file=io.StringIO(), width=200)
        print_results(results, console)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    assert "busy machine" not in shown()
    results.conditions["test"] = Conditions("cpu", 1, 10.0, 7.1, 1.3)
    assert "on a busy machine, so times are less reliable" in shown()
    results.evaluations[3] = replace(
        results.evaluations[0], candidate="i-clustered-25", variant="i-clustered-25"
    )
    level = "2.00 s (1.90 … 2.20 s, level, front)"
    assert shown_in(outcome.table(results), "forward, test") == [level, level]
    results.evaluations[3].forward_s, results.evaluations[3].forward_repeats_s = 1.0, [0.9, 1.0, 1.1]
    assert shown_in(outcome.table(results), "forward, test") == [
        "2.00 s (1.90 … 2.20 s)",
        "1.00 s (900 ms … 1.10 s, fastest, front)",
    ]


def shown_in(table: Table | None, column: str) -> list[str]:
    """Return the text of a column."""
    assert table is not None
    index = [x.name for x in table.columns].index(column)
    return [str(row[index]) for row in table.rows]


def test_steps_are_whole_numbers() -> None:
    """The median over seeds of forty steps was shown as 40.0."""
    results = sample()
    results.protocol["budget"] = "40 steps"
    for training in results.trainings:
        training.steps = 40
    assert shown_in(costs.table(results), "steps") == ["40", "–"]


def test_labels_with_brackets_are_printed_as_they_are() -> None:
    """They were taken for markup: a comparison whose label ended in [/x] crashed after all trainings."""
    results = sample()
    results.protocol["budget"] = "10 steps"
    label = results.candidates[0].label = "full [/x] [warm]"
    for record in (*results.trainings, *results.evaluations):
        record.candidate = record.candidate.replace("full", label)
    text = io.StringIO()
    print_results(results, Console(file=text, width=200))
    assert text.getvalue().count(label) == 3  # two tables of models, and the matrix


def test_cpu_time_of_other_processes_comes_from_proc_stat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 3 s that all CPUs were busy in 2 s, this process used 1 s: others kept one CPU busy."""
    ticks = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    clocks = {"perf_counter": 5.0, "process_time": 1.0}
    for name in clocks:
        monkeypatch.setattr(f"asr.measure.time.{name}", lambda name=name: clocks[name])
    stat.write_text(f"cpu  {10 * ticks} 0 {2 * ticks} {99 * ticks} 7 0 0 0 {10 * ticks} 0\ncpu0 …\n")
    others = OtherProcesses(stat)
    assert others.cpus() is None  # no time has passed
    clocks |= {"perf_counter": 7.0, "process_time": 2.0}
    stat.write_text(f"cpu  {12 * ticks} 0 {3 * ticks} {100 * ticks} 9 0 0 0 {12 * ticks} 0\ncpu0 …\n")
    assert others.cpus() == pytest.approx(1.0)
    assert OtherProcesses(tmp_path / "missing").cpus() is None


def test_results_of_an_unknown_candidate_are_refused() -> None:
    """A results.json whose evaluations name another candidate ended in a StopIteration."""
    results = Results([], "demo", "", {}, {}, {}, [], [], [], [])
    with pytest.raises(UserError, match="no candidate 'x'"):
        results.candidate("x")
