"""Worker processes of a comparison, each of which runs the cells of one model."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from asr.config import user_code
from asr.experiment.cell import GRACE_S, Cell, log_path, read_fraction

CODE = "--code="  # prefix of files and modules that the worker loads first
POLL_S = 0.3  # each poll reads a small file per cell, perhaps on a cluster's shared file system


def run_cells(
    folder: Path, cells: list[Cell], advance: Callable[[Cell, float], None] = lambda cell, fraction: None
) -> None:
    """Run cells in a worker process; if it dies in one, continue with the next in a new process.

    Args:
        folder: folder of the comparison, which contains the cells' journals.
        cells: cells of one model.
        advance: called repeatedly with the running cell and its completed fraction; 1 once it has ended.
    """
    waiting = list(cells)
    while waiting:
        status = _run_worker(folder, waiting, advance)
        waiting = [cell for cell in waiting if cell.state(folder).record is None]
        if waiting:
            broken = next((x for x in waiting if x.state(folder).status == "running"), waiting[0])
            broken.job(folder).end(error=_reason(log_path(folder, broken.name), status))
            advance(broken, 1.0)
            waiting.remove(broken)


def worker_command(folder: Path, cells: list[Cell]) -> list[str]:
    """Return the command of a worker, which runs cells one after another."""
    code = [f"{CODE}{source}" for source in user_code.sources()]
    return [sys.executable, "-m", "asr.experiment.worker", *code, str(folder), *(cell.name for cell in cells)]


def _run_worker(folder: Path, cells: list[Cell], advance: Callable[[Cell, float], None]) -> int:
    """Run a worker over cells; return its exit status."""
    path = log_path(folder, cells[0].name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as log:
        # In a separate session, the worker doesn't receive Ctrl-C; this process stops it.
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
                    show_progress(folder, cells, advance)
        finally:
            # Terminated, not killed: a training first ends its step and writes a resume point.
            process.terminate()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                pass
            finally:  # also after a second Ctrl-C
                process.kill()
                process.wait()
            show_progress(folder, cells, advance)


def show_progress(folder: Path, cells: list[Cell], advance: Callable[[Cell, float], None]) -> None:
    """Call `advance` with the cells that run or have ended."""
    for cell in cells:
        status = cell.state(folder).status
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
