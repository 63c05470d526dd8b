"""Learning rates that a comparison chooses for each candidate."""

import math
from dataclasses import replace
from pathlib import Path

import comparisons
import pytest

from asr.cli import main
from asr.experiment.plan import RATES
from asr.experiment.rates import choose
from asr.experiment.records import CurvePoint, Training
from asr.experiment.results import Results, read_results
from asr.report.page import markdown
from asr.report.tables import rates

GRID = "learning_rates=[1e-5,1e-2]"


def arguments(corpus: Path, folder: Path, *more: str) -> list[str]:
    """Return the arguments of a comparison that leaves the learning rate open."""
    asked = comparisons.arguments(corpus, folder, *more)
    return [x for x in asked if x in more or not x.startswith("optimizer.learning_rate=")]


def training(label: str, error: float | None, loss: float = 1.0) -> Training:
    curve = [] if error is None else [CurvePoint(5, 1.0, 1.0, 1.0, 1.0, loss, error)]
    status = "failed" if error is None else "done"
    return Training(
        label, 0, "run", status, None if error else "out of memory", best_step=5, dev_error=error, curve=curve
    )


def results_of(*trainings: Training) -> Results:
    return Results(["asr"], "demo", "2026-01-01T00:00:00Z", {}, {}, {}, [], list(trainings), [], [])


@pytest.mark.slow
def test_each_candidate_keeps_its_best_rate_and_its_first_seeds_run(
    fast: None, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = arguments(
        tone_corpus, tmp_path, "attentions=[full,local-4]", GRID, "seeds=[3,4]", "evaluate=[own]"
    )
    assert main([*asked, "dry_run=true"]) == 0
    assert not any(tmp_path.iterdir())
    planned = capsys.readouterr().out
    assert "full, 1e-05" in planned
    assert "here still at one rate" in planned
    assert main(asked) == 0
    shown = capsys.readouterr().out
    results, trials = read_results(tmp_path), read_results(tmp_path / RATES)
    assert [x.label for x in results.candidates] == ["full", "local-4"]
    assert {(x.candidate, x.rate) for x in results.tried} == {
        (name, rate) for name in ("full", "local-4") for rate in (1e-5, 1e-2)
    }
    assert not trials.evaluations
    assert {x.seed for x in trials.trainings} == {3}
    for candidate in results.candidates:
        [chosen] = [x for x in results.tried if x.candidate == candidate.label and x.chosen]
        others = [x for x in results.tried if x.candidate == candidate.label and not x.chosen]
        assert all((chosen.dev_error, chosen.dev_loss) <= (x.dev_error, x.dev_loss) for x in others)
        assert candidate.overrides == {"optimizer.learning_rate": chosen.rate}
        first, second = results.trainings_of(candidate.label)
        assert (first.reused, second.reused) == (True, False)
        assert first.run == f"{RATES}/trainings/{candidate.label},{chosen.rate:g}/seed3"
        assert f"optimizer.learning_rate={chosen.rate}" in second.command
    assert "learning rate, one training each" in shown
    assert "learning_rates=[1e-5,1e-2]" in results.command
    states = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("training.json")}
    assert len(states) == 6
    assert main(asked) == 0  # nothing is trained twice
    assert states == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("training.json")}
    assert main([*asked, "dry_run=true"]) == 0
    assert "here still at one rate" not in capsys.readouterr().out


@pytest.mark.slow
def test_steps_that_fit_in_a_budget_are_the_same_at_all_rates(
    fast: None, tone_corpus: Path, tmp_path: Path
) -> None:
    asked = [x for x in arguments(tone_corpus, tmp_path, "attentions=[full]", GRID) if x != "steps=4"]
    asked += ["budget=1s", "budget_clock=steps", "evaluate=[own]", "trainer.accelerator=cpu"]
    assert main(asked) == 0
    results, trials = read_results(tmp_path), read_results(tmp_path / RATES)
    assert len({x.steps for x in [*results.trainings, *trials.trainings]}) == 1
    assert results.trainings[0].reused


def test_the_lowest_error_then_the_lowest_loss_decides() -> None:
    labels = {f"full, {rate}": ("full", rate) for rate in (1.0, 2.0, 3.0, 4.0)}
    errors = [(0.5, 9.0), (0.4, 2.0), (0.4, 1.0), (None, 0.0)]
    found = choose(results_of(*(training(x, *y) for x, y in zip(labels, errors, strict=True))), labels)
    assert [x.rate for x in found if x.chosen] == [3.0]
    assert [x.dev_loss for x in found] == [9.0, 2.0, 1.0, None]
    diverged = [training("full, 1.0", math.nan), training("full, 2.0", 0.9)]
    assert [x.chosen for x in choose(results_of(*diverged), labels)] == [False, True]


def test_the_table_marks_the_choice_and_the_end_of_the_grid() -> None:
    """A rate at the end of the grid may be far from the best one, and nothing would say so."""
    labels = {f"{name}, {rate}": (name, rate) for name in ("full", "lsh-1") for rate in (1e-4, 1e-3, 1e-2)}
    errors = [0.3, 0.2, None, 0.5, 0.4, 0.1]
    tried = choose(results_of(*(training(x, y) for x, y in zip(labels, errors, strict=True))), labels)
    tried = [replace(x, train_cpu_s=100.0, train_s=1.0) for x in tried]
    table = rates.table(replace(results_of(), tried=tried, protocol={"clock": "cpu"}))
    assert table is not None
    assert [[str(cell) for cell in row] for row in table.rows] == [
        ["full", "30.00 (1.000)", "20.00 (1.000)", "– (failed)", "0.001", "300"],
        ["lsh-1", "50.00 (1.000)", "40.00 (1.000)", "10.00 (1.000)", "0.01 (at the end)", "300"],
    ]
    assert [[cell.own for cell in row].index(True) for row in table.rows] == [2, 3]
    assert "| lsh-1 |" in markdown([table])
    assert rates.table(results_of()) is None


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (["learning_rates=[1e-3]"], "learning_rates=0.001: expected at least two distinct rates above 0"),
        (["learning_rates=[1e-3,1e-3]"], "expected at least two distinct rates above 0"),
        (["learning_rates=[0,1e-3]"], "learning_rates=0,0.001: expected at least two distinct rates"),
        (["learning_rates=[-1,1]"], "learning_rates"),
        (["learning_rates=[.nan,1]"], "learning_rates"),
        (["learning_rates=[1,1000]"], "learning_rates"),
        (
            [GRID, "optimizer.learning_rate=1"],
            "optimizer.learning_rate=1: can't be combined with learning_rates",
        ),
        (
            [GRID, "candidates=[{attention: lsh-1, optimizer.learning_rate: 1}]"],
            "candidate lsh-1: optimizer.learning_rate= can't be combined with learning_rates",
        ),
        (
            [GRID, "candidates=[{attention: clustered-4, init_from: full}]"],
            "candidate full → clustered-4: init_from=full can't be combined with learning_rates",
        ),
        (
            [GRID, "steps=0", "budget=[1min,2min]"],
            "budget=1min,2min: expected one budget with learning_rates",
        ),
    ],
)
def test_wrong_rates_end_with_a_line(
    wrong: list[str], expected: str, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tone_corpus, tmp_path, "attentions=[full]", *wrong)) == 1
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_a_candidate_without_any_error_on_dev_is_named() -> None:
    labels = {"full, 1.0": ("full", 1.0)}
    with pytest.raises(
        Exception, match="no training of full ended with an error on dev; the first failed: out"
    ):
        choose(results_of(training("full, 1.0", None)), labels)
