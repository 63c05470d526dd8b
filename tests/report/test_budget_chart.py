"""Error rate against training time, of comparisons with several budgets."""

import dataclasses
from pathlib import Path

import pytest
from comparison import make_comparison

from asr.experiment.results import Results
from asr.report.figure import export
from asr.report.figures import budgets
from asr.report.tables import differences


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Two models with two budgets each, made from results of other ones."""
    found = make_comparison(tmp_path, models=["full", "lsh-1", "i-clustered-25", "cast-8"], utterances=4)
    named = {
        "full": ("full, 3min", "full", "3min"),
        "lsh-1": ("local-64, 3min", "local-64", "3min"),
        "i-clustered-25": ("full, 1h", "full", "1h"),
        "cast-8": ("local-64, 1h", "local-64", "1h"),
    }
    own = {x.label: x.attention for x in found.candidates}
    found.evaluations = [x for x in found.evaluations if x.variant == own[x.candidate]]
    found.differences = [x for x in found.differences if all(own[y] == z for y, z in (x.first, x.second))]

    def system(pair: tuple[str, str]) -> tuple[str, str]:
        label, attention, _ = named[pair[0]]
        return (label, attention) if pair[1] == own[pair[0]] else (label, pair[1])

    for candidate in found.candidates:
        if candidate.label in named:
            candidate.label, candidate.attention, candidate.budget = named[candidate.label]
    for training in found.trainings:
        training.candidate = named.get(training.candidate, (training.candidate,))[0]
    for evaluation in found.evaluations:
        evaluation.candidate, evaluation.variant = system((evaluation.candidate, evaluation.variant))
    found.differences = [
        dataclasses.replace(x, first=system(x.first), second=system(x.second)) for x in found.differences
    ]
    return found


@pytest.mark.slow
def test_a_point_per_model_and_budget(results: Results, tmp_path: Path) -> None:
    rows = budgets.budget_rows(results, "test", "per")
    assert [(x["series"], x["minutes"], x["seeds"]) for x in rows] == [
        ("full", 3.0, 3),
        ("local-64", 3.0, 1),
        ("full", 60.0, 3),
        ("local-64", 60.0, 1),
    ]
    for row in rows:
        rate = results.error_rate(f"{row['series']}, {row['budget']}", "test", "per")
        assert rate is not None
        assert row["rate"] == pytest.approx(100 * rate.value)
    figure = budgets.figure(results)
    assert figure is not None
    assert [line.key for line in figure.series] == ["full", "local-64"]
    assert {path.suffix for path in export(figure, tmp_path)} >= {".png", ".pdf"}


def test_models_are_compared_at_the_same_budget(results: Results) -> None:
    table = differences.table(results, "test")
    assert table is not None
    assert table.title == "PER on test, compared with full, 3min and with full, 1h"
    assert [row[0].text for row in table.rows] == ["local-64, 3min", "local-64, 1h"]


def test_one_budget_has_no_figure(tmp_path: Path) -> None:
    found = make_comparison(tmp_path, models=["full"], utterances=4)
    assert budgets.figure(found) is None
