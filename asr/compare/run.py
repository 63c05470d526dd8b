"""A comparison from plan to results: stages of jobs, each done at most once, whatever interrupts them."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from asr.compare.cells import Cell, is_done, read_state, write_cell, write_state
from asr.compare.collect import collect
from asr.compare.options import CompareConfig
from asr.compare.plan import Plan, settle_changes, timing_cells
from asr.compare.processes import run_job
from asr.compare.results import Results
from asr.compare.results_file import write_results
from asr.compare.watch import Watch
from asr.errors import UserError
from asr.files import write_text


def run_plan(plan: Plan, command: list[str], console: Console) -> Results:
    """Work on every cell that isn't done, and write results.json and results.csv after every stage.

    Raises:
        UserError: cells of other settings, or another process that works on the same comparison.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    with _only_one(plan.folder):
        for line in settle_changes(plan):
            console.print(line, markup=False)
        _adopt(plan, console)
        watch = Watch(plan, console)
        with watch:
            for stage in _training_stages(plan):
                _run_stage(plan, [[cell] for cell in stage], watch)
                write_results(collect(plan, command), plan.folder)
            _run_stage(plan, _by_model(plan), watch)
            write_results(collect(plan, command), plan.folder)
            _run_stage(plan, [[cell] for cell in timing_cells(plan)], watch)
        results = collect(plan, command)
        write_results(results, plan.folder)
    return results


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the comparison's folder; the system lets go of it when the process ends, however it does."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder}: another asr compare works on it") from None
        yield


def _adopt(plan: Plan, console: Console) -> None:
    """Take over finished runs that were there before."""
    for cell in plan.trainings.values():
        if cell.name in plan.reused and not is_done(plan.folder, cell):
            run = plan.reused[cell.name]
            write_cell(plan.folder, cell)
            result = {"run": os.path.relpath(run, plan.folder), "reused": True}
            write_state(plan.folder, cell, "done", result=result)
            console.print(f"{cell.name}: {run} has been trained like this, it is taken", markup=False)


def _training_stages(plan: Plan) -> Iterator[list[Cell]]:
    """Yield the trainings in stages, each of which needs the ones before only."""
    waiting = list(plan.trainings.values())
    settled: set[str] = set()
    while waiting:
        stage = [cell for cell in waiting if not cell.needs or cell.needs in settled]
        yield stage
        settled |= {cell.name for cell in stage}
        waiting = [cell for cell in waiting if cell.name not in settled]


def _by_model(plan: Plan) -> list[list[Cell]]:
    """Return the evaluations of each trained model: one process loads the libraries for all of them."""
    jobs: dict[str, list[Cell]] = {}
    for cell in plan.evaluations.values():
        jobs.setdefault(cell.needs, []).append(cell)
    return list(jobs.values())


def _run_stage(plan: Plan, jobs: list[list[Cell]], watch: Watch) -> None:
    """Work on what isn't done of each job; what needs a cell that failed is left out."""
    pending = [
        [cell for cell in job if not is_done(plan.folder, cell) and _ready(plan, cell)] for job in jobs
    ]
    pending = [job for job in pending if job]
    for cell in (cell for job in pending for cell in job):
        write_cell(plan.folder, cell)
    if plan.options.launcher and pending:
        launch(plan.folder, plan.options, pending)
        return
    for job in pending:
        run_job(plan.folder, job, watch.tell)


def _ready(plan: Plan, cell: Cell) -> bool:
    return not cell.needs or read_state(plan.folder, cell.needs).status == "done"


def launch(folder: Path, options: CompareConfig, jobs: list[list[Cell]]) -> None:
    """Have a Hydra launcher run jobs, and wait for them.

    Raises:
        UserError: the launcher ended without having worked on all cells.
    """
    names = [[cell.name for cell in job] for job in jobs]
    write_text(json.dumps(names, indent=1), folder / "jobs.json")
    cells = [cell for job in jobs for cell in job]
    for cell in cells:
        (folder / cell.name / "state.json").unlink(missing_ok=True)
    words = [f"folder='{folder.absolute()}'", "job=" + ",".join(map(str, range(len(jobs))))]
    words += [f"hydra/launcher={options.launcher}", *options.launch]
    ended = subprocess.run([sys.executable, "-m", "asr.compare.cell", "--multirun", *words]).returncode
    missing = [cell for cell in cells if read_state(folder, cell.name).status == "missing"]
    if missing:
        raise UserError(
            f"launcher={options.launcher}: ended with status {ended}, {len(missing)} cells were not "
            f"worked on, e.g. {missing[0].name}"
        )
