"""Runs the plan of a comparison: stages of jobs in processes of their own, each cell at most once.

`python -m asr.compare.run --multirun folder=… job=0,1,2` works on jobs of jobs.json under a Hydra launcher;
`asr compare launcher=<name>` starts it. conf/compare.yaml describes how to configure launchers.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hydra
from omegaconf import DictConfig
from rich.console import Console

from asr.compare.cell import (
    Cell,
    current_state,
    is_done,
    log_path,
    read_cell,
    read_fraction,
    read_state,
    write_cell,
    write_state,
)
from asr.compare.collect import collect
from asr.compare.options import CompareConfig
from asr.compare.plan import Plan, settle_changes, timing_cells
from asr.compare.progress import CellProgress
from asr.compare.results import Results, write_results
from asr.errors import UserError
from asr.files import locked, write_text

POLL_S = 0.3


def run_plan(plan: Plan, console: Console) -> Results:
    """Run every cell that isn't done; write results.json and results.csv after every stage.

    Raises:
        UserError: cells exist with other settings, or another process runs the same comparison.
    """
    with locked(plan.folder, "asr compare"):
        for line in settle_changes(plan):
            console.print(line, markup=False)
        _adopt(plan, console)
        progress = CellProgress(plan, console)
        with progress.bars:
            for stage in _training_stages(plan):
                _run_stage(plan, [[cell] for cell in stage], progress)
                write_results(collect(plan), plan.folder)
            _run_stage(plan, _by_model(plan), progress)
            write_results(collect(plan), plan.folder)
            _run_stage(plan, [[cell] for cell in timing_cells(plan)], progress)
        results = collect(plan)
        write_results(results, plan.folder)
    return results


def _adopt(plan: Plan, console: Console) -> None:
    """Mark trainings as done that reuse a finished run."""
    for cell in plan.trainings.values():
        if cell.name in plan.reused and not is_done(plan.folder, cell):
            run = plan.reused[cell.name]
            write_cell(plan.folder, cell)
            result = {"run": os.path.relpath(run, plan.folder), "reused": True}
            write_state(plan.folder, cell, "done", result=result)
            console.print(f"{cell.name}: reusing {run}, which has the same settings", markup=False)


def _training_stages(plan: Plan) -> Iterator[list[Cell]]:
    """Yield the trainings in stages, each of which needs only earlier ones."""
    waiting = list(plan.trainings.values())
    settled: set[str] = set()
    while waiting:
        stage = [cell for cell in waiting if not cell.needs or cell.needs in settled]
        yield stage
        settled |= {cell.name for cell in stage}
        waiting = [cell for cell in waiting if cell.name not in settled]


def _by_model(plan: Plan) -> list[list[Cell]]:
    """Group the evaluations by trained model, so that one process imports the libraries for all of them."""
    jobs: dict[str, list[Cell]] = {}
    for cell in plan.evaluations.values():
        jobs.setdefault(cell.needs, []).append(cell)
    return list(jobs.values())


def _run_stage(plan: Plan, jobs: list[list[Cell]], progress: CellProgress) -> None:
    """Run the unfinished cells of each job; skip those that need a failed cell."""

    def is_pending(cell: Cell) -> bool:
        ready = not cell.needs or read_state(plan.folder, cell.needs).status == "done"
        return ready and not is_done(plan.folder, cell)

    pending = [[cell for cell in job if is_pending(cell)] for job in jobs]
    pending = [job for job in pending if job]
    for cell in (cell for job in pending for cell in job):
        write_cell(plan.folder, cell)
    if plan.options.launcher and pending:
        launch(plan.folder, plan.options, pending)
        return
    for job in pending:
        run_job(plan.folder, job, progress.update)


def run_job(
    folder: Path, cells: list[Cell], advance: Callable[[Cell, float], None] = lambda cell, fraction: None
) -> None:
    """Run cells in a worker process; if it dies in one, continue with the next in a new process.

    Args:
        folder: folder of the comparison, which contains the cells' cell.json.
        cells: cells of one model.
        advance: called repeatedly with the running cell and its completed fraction; 1 once it has ended.
    """
    waiting = list(cells)
    while waiting:
        status = _run_worker(folder, waiting, advance)
        waiting = [cell for cell in waiting if current_state(folder, cell).status not in ("done", "failed")]
        if waiting:
            running = [cell for cell in waiting if read_state(folder, cell.name).status == "running"]
            broken = (running or waiting)[0]
            write_state(folder, broken, "failed", error=_reason(log_path(folder, broken.name), status))
            advance(broken, 1.0)
            waiting.remove(broken)


def worker_command(folder: Path, cells: list[Cell]) -> list[str]:
    """Return the command that runs cells."""
    return [sys.executable, "-m", "asr.compare.cell", str(folder), *(cell.name for cell in cells)]


def _run_worker(folder: Path, cells: list[Cell], advance: Callable[[Cell, float], None]) -> int:
    """Run a worker over cells; return its exit status."""
    path = log_path(folder, cells[0].name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as log:
        # In a session of its own, the worker does not receive Ctrl-C; this process stops it.
        process = subprocess.Popen(
            worker_command(folder, cells),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    return process.wait(POLL_S)
                except subprocess.TimeoutExpired:
                    _advance(folder, cells, advance)
        finally:
            process.kill()
            process.wait()
            _advance(folder, cells, advance)


def _advance(folder: Path, cells: list[Cell], advance: Callable[[Cell, float], None]) -> None:
    for cell in cells:
        status = read_state(folder, cell.name).status
        if status == "running":
            advance(cell, read_fraction(folder, cell.name))
        elif status in ("done", "failed"):
            advance(cell, 1.0)


def _reason(log: Path, status: int) -> str:
    if status == -9:
        return "worker killed by signal 9, as the system does when memory runs out"
    how = f"killed by signal {-status}" if status < 0 else f"ended with status {status}"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return f"worker {how}" + (f"; last line of its log: {lines[-1][:200]}" if lines else "")


def launch(folder: Path, options: CompareConfig, jobs: list[list[Cell]]) -> None:
    """Run jobs under a Hydra launcher and wait for them.

    Raises:
        UserError: the launcher ended before all cells had run.
    """
    names = [[cell.name for cell in job] for job in jobs]
    write_text(json.dumps(names, indent=1), folder / "jobs.json")
    cells = [cell for job in jobs for cell in job]
    words = [f"folder='{folder.absolute()}'", "job=" + ",".join(map(str, range(len(jobs))))]
    words += [f"hydra/launcher={options.launcher}", *options.launch]
    status = subprocess.run([sys.executable, "-m", "asr.compare.run", "--multirun", *words]).returncode
    missing = [cell for cell in cells if read_state(folder, cell.name).status == "missing"]
    if missing:
        raise UserError(
            f"launcher={options.launcher}: ended with status {status} before {len(missing)} cells had run, "
            f"e.g. {missing[0].name}"
        )


@hydra.main(config_path="pkg://asr_conf", config_name="compare", version_base="1.3")
def main(options: DictConfig) -> None:
    """Run one job of jobs.json; failures are recorded in the states of its cells."""
    folder = Path(options.folder)
    names = json.loads((folder / "jobs.json").read_text())[options.job]
    run_job(folder, [read_cell(folder, name) for name in names])


if __name__ == "__main__":
    main()
