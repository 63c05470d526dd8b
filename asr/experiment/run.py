"""Runs the plan of a comparison: stages of cells in separate processes, each cell at most once.

A trained model is evaluated at once, or, with a launcher, after the trainings of its stage. Forward passes
are timed at the end, while nothing else runs.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console

from asr.experiment.cell import Cell, TrainingResult, read_state
from asr.experiment.collect import collect
from asr.experiment.launch import launch
from asr.experiment.plan import Plan, settle_changes, timing_cells
from asr.experiment.progress import CellProgress
from asr.experiment.results import Results, write_results
from asr.files import locked


def run_plan(plan: Plan, console: Console, later: int = 0) -> Results:
    """Run every cell that isn't done; write results.json and results.csv after every stage.

    Args:
        plan: plan of the comparison.
        console: console to print to.
        later: number of trainings that follow the plan, for the remaining time.

    Raises:
        UserError: cells exist with other settings, or another process runs the same comparison.
    """
    with locked(plan.folder, "asr compare"):
        for line in settle_changes(plan):
            # Labels may contain brackets, which would be interpreted as markup.
            console.print(line, markup=False)
        _adopt(plan, console)
        progress = CellProgress(plan, console, later)
        with progress.bars:
            for stage in _training_stages(plan):
                _run_stage(plan, [[cell] for cell in stage], progress)
                _run_stage(plan, _evaluations(plan, stage), progress)
                # After every model, so that `asr report` shows the finished models of a long comparison.
                write_results(collect(plan), plan.folder)
            _run_stage(plan, [[cell] for cell in timing_cells(plan)], progress)
        results = collect(plan)
        write_results(results, plan.folder)
    return results


def _adopt(plan: Plan, console: Console) -> None:
    """Mark trainings that reuse a finished run as done."""
    for cell in plan.trainings.values():
        if cell.name in plan.reused and not cell.is_done(plan.folder):
            run = plan.reused[cell.name]
            cell.plan(plan.folder)
            result = TrainingResult(os.path.relpath(run, plan.folder), reused=True)
            cell.job(plan.folder).end(result=asdict(result))
            console.print(f"{cell.name}: reusing {run}, which has the same settings", markup=False)


def _training_stages(plan: Plan) -> Iterator[list[Cell]]:
    """Yield the trainings in stages that need only earlier ones; without a launcher, one by one."""
    if not plan.options.launcher:
        yield from ([cell] for cell in plan.trainings.values())
        return
    waiting = list(plan.trainings.values())
    settled: set[str] = set()
    while waiting:
        stage = [cell for cell in waiting if not cell.needs or cell.needs in settled]
        yield stage
        settled |= {cell.name for cell in stage}
        waiting = [cell for cell in waiting if cell.name not in settled]


def _evaluations(plan: Plan, trainings: list[Cell]) -> list[list[Cell]]:
    """Return the evaluations of each model, so that one process imports the libraries for all of them."""
    groups: dict[str, list[Cell]] = {cell.name: [] for cell in trainings}
    for cell in plan.evaluations.values():
        if cell.needs in groups:
            groups[cell.needs].append(cell)
    return list(groups.values())


def _run_stage(plan: Plan, groups: list[list[Cell]], progress: CellProgress) -> None:
    """Run the unfinished cells of each group; skip those that need a failed cell."""

    def is_pending(cell: Cell) -> bool:
        ready = not cell.needs or read_state(plan.folder, cell.needs).status == "done"
        return ready and not cell.is_done(plan.folder)

    pending = [[cell for cell in group if is_pending(cell)] for group in groups]
    pending = [group for group in pending if group]
    for cell in (cell for group in pending for cell in group):
        cell.plan(plan.folder)
    if pending:
        launch(plan.folder, plan.options, pending, progress.update)
