"""The progress display of a comparison."""

import io
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from comparisons import arguments, put
from rich.console import Console

from asr.cli import main
from asr.experiment import progress as progress_module
from asr.experiment.cell import Cell
from asr.experiment.plan import Plan, make_plan
from asr.experiment.progress import CellProgress, TrainingTime, print_grid, print_plan
from asr.experiment.request import parse

TRAININGS = [Cell(f"trainings/{name}/seed0", "training", {"attention": name}) for name in "abc"]
CELL = Cell("trainings/full/seed0", "training", {"attention": "full"})


def progress_of(
    folder: Path, *cells: Cell, launcher: str = "", budgets: Sequence[str] = (), later: int = 0
) -> tuple[CellProgress, io.StringIO]:
    """Return the display of cells, the first of which are trainings with these budgets."""
    cells = cells or (CELL,)
    for cell in cells:
        cell.plan(folder)
    options = SimpleNamespace(launcher=launcher, budget=[])
    trainings = {(x.name, 0): x for x in cells}
    candidates = [
        SimpleNamespace(label=x.name, budget=budget, overrides={}, seeds=[0])
        for x, budget in zip(cells, budgets, strict=False)
    ]
    parts = {"evaluations": {}, "candidates": candidates, "trainings": trainings}
    plan: Any = SimpleNamespace(folder=folder, cells=lambda: iter(cells), options=options, **parts)
    text = io.StringIO()
    return CellProgress(cast(Plan, plan), Console(file=text, width=100), later), text


def test_a_cell_at_100_percent_may_still_be_running(tmp_path: Path) -> None:
    """A training that had used up its budget but was still validating appeared as "FAILED: None"."""
    progress, text = progress_of(tmp_path)
    put(tmp_path, CELL, "running")
    progress.update(CELL, 1.0)
    assert "FAILED" not in text.getvalue()
    put(tmp_path, CELL, "done", seconds=12.0)
    progress.update(CELL, 1.0)
    progress.update(CELL, 1.0)
    assert text.getvalue().count("trainings/full/seed0: 12.0 s") == 1


def test_a_failure_is_shown_with_its_reason(tmp_path: Path) -> None:
    progress, text = progress_of(tmp_path)
    put(tmp_path, CELL, "failed", error="out of memory")
    progress.update(CELL, 1.0)
    assert "[1/1] trainings/full/seed0: FAILED: out of memory" in text.getvalue()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock to set, and a line for every update."""
    now = [0.0]
    monkeypatch.setattr("asr.experiment.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr("asr.experiment.progress.LINE_EVERY_S", -1.0)
    return now


def test_the_time_left_of_a_resumed_training_counts_from_where_it_began(
    tmp_path: Path, clock: list[float]
) -> None:
    """A training that resumed at 80 % seemed to be over in seconds."""
    progress, text = progress_of(tmp_path, *TRAININGS[:2])
    put(tmp_path, TRAININGS[0], "running")
    for clock[0], fraction in ((0, 0.0), (30, 0.8), (130, 0.9)):
        progress.update(TRAININGS[0], fraction)
    assert text.getvalue().endswith("trainings/a/seed0: 90%  about 18 min 20 s left\n")  # 100 s + 1000 s


def test_the_time_left_includes_trainings_that_have_not_begun(tmp_path: Path, clock: list[float]) -> None:
    """After a training of 1 min, one of 10 min seemed to need another minute, and other seeds nothing."""
    progress, text = progress_of(tmp_path, *TRAININGS, budgets=["1min", "10min", "10min"])
    put(tmp_path, TRAININGS[0], "running")
    progress.update(TRAININGS[0], 0.0)
    assert text.getvalue().endswith("trainings/a/seed0: 0%  about 21 min 00 s left\n")
    put(tmp_path, TRAININGS[0], "done", seconds=66.0)
    progress.update(TRAININGS[0], 1.0)
    assert text.getvalue().endswith("66.0 s  about 22 min 00 s left\n")

    progress, text = progress_of(tmp_path / "rates", *TRAININGS[:2], later=4)
    put(tmp_path / "rates", TRAININGS[0], "done", seconds=60.0)
    progress.update(TRAININGS[0], 1.0)
    assert text.getvalue().endswith("60.0 s  about 5 min 00 s left\n")


def test_the_time_left_of_a_timing_is_shown(tmp_path: Path, clock: list[float]) -> None:
    """A timing is no cell of the plan: looking for its budget ended comparisons with a traceback."""
    progress, text = progress_of(tmp_path)
    timing = Cell("timings/test", "timing", {})
    put(tmp_path, CELL, "done", seconds=60.0)
    progress.update(CELL, 1.0)
    put(tmp_path, timing, "running")
    for clock[0], fraction in ((0, 0.1), (10, 0.3)):
        progress.update(timing, fraction)
    assert text.getvalue().endswith("timings/test: 30%  about 35.0 s left\n")


def test_no_time_is_shown_with_a_launcher(tmp_path: Path, clock: list[float]) -> None:
    """Between two of six jobs at once, the others seemed to be left one after the other."""
    progress, text = progress_of(tmp_path, *TRAININGS[:2], launcher="submitit_local")
    for cell in TRAININGS[:2]:
        put(tmp_path, cell, "running")
    for clock[0], fraction in ((0, 0.0), (1, 0.001), (600, 0.1)):
        for cell in TRAININGS[:2]:
            progress.update(cell, fraction)
    assert text.getvalue().endswith("trainings/b/seed0: 10%  \n")
    put(tmp_path, TRAININGS[0], "done", seconds=6000.0)
    progress.update(TRAININGS[0], 1.0)
    assert text.getvalue().endswith("trainings/a/seed0: 1 h 40 min  \n")


def test_evaluations_of_a_failed_training_need_no_time(tmp_path: Path, clock: list[float]) -> None:
    a, b, c = TRAININGS
    finetuned = Cell("trainings/d/seed0", "training", {}, needs=b.name)
    needing = Cell("evaluations/d/seed0/test", "evaluation", {}, needs=finetuned.name)
    progress, text = progress_of(tmp_path, a, b, c, finetuned, needing)
    for cell, status in ((a, "done"), (b, "failed")):
        put(tmp_path, cell, status, seconds=60.0)
        progress.update(cell, 1.0)
    assert text.getvalue().endswith("FAILED: broken  about 60.0 s left\n")


def test_an_interrupted_comparison_says_how_to_go_on(
    corpus_maker: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It said `interrupted`: whether hours of training were lost stood in the documentation."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("asr.experiment.run.run_plan", interrupt)
    asked = arguments(corpus_maker(train=2), tmp_path / "out", "attentions=[full]", "evaluate=[own]")
    assert main(asked) == 130
    assert capsys.readouterr().out.endswith(f"to go on: {shlex.join(['asr', *asked])}\n")


def test_the_dry_run_has_one_row_for_seeds_that_cost_the_same(
    corpus_maker: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan had a row for every candidate and seed, and a table of candidates before them."""
    monkeypatch.setattr(progress_module, "_expected", lambda *_: TrainingTime(8, 1.0, 5.0, "timed steps"))
    asked = arguments(corpus_maker(train=2), tmp_path / "out", "attentions=[full,lsh-1]", "evaluate=[own]")
    request = parse([*asked[1:], "seeds=[0,1,2]"])
    plan = make_plan(request)

    def shown() -> list[str]:
        console = Console(file=io.StringIO(), width=200)
        print_grid(request, console)
        print_plan(plan, console)
        assert isinstance(console.file, io.StringIO)
        return [" ".join(line.replace("│", " ").split()) for line in console.file.getvalue().splitlines()]

    rows = ["full, seeds 0, 1, 2 to do 8 1.00 s 5.00 s timed steps"]
    rows += ["lsh-1, seeds 0, 1, 2 to do 8 1.00 s 5.00 s timed steps"]
    assert [line for line in shown() if line.startswith(("full", "lsh-1"))] == rows
    assert shown()[-1].startswith("about 30.0 s in sequence")
    for cell in plan.cells():
        put(plan.folder, cell, "done", seconds=1.0)
    assert [line for line in shown() if line.startswith("full")] == ["full, seeds 0, 1, 2 done"]
    assert shown()[-1] == "6 evaluations, 0 of them to do"  # not "about 0 ms in sequence"
