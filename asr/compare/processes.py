"""Jobs in processes of their own: what crashes takes nothing with it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from asr.compare.cells import Cell, log_path, read_fraction, read_state, write_state

POLL_S = 0.3


def run_job(
    folder: Path, cells: list[Cell], watch: Callable[[Cell, float], None] = lambda cell, share: None
) -> None:
    """Work on cells in a process; where it dies on one, go on with the next in another process.

    Args:
        folder: of the comparison; the cells' folders hold their cell.json.
        cells: of one model.
        watch: called now and then with the cell that is worked on and the share of it that is done, 1 where
            it has ended.
    """
    waiting = list(cells)
    while waiting:
        ended = _run_process(folder, waiting, watch)
        waiting = [cell for cell in waiting if not _settled(folder, cell)]
        if waiting:
            running = [cell for cell in waiting if read_state(folder, cell.name).status == "running"]
            broken = (running or waiting)[0]
            write_state(folder, broken, "failed", error=_reason(log_path(folder, broken.name), ended))
            watch(broken, 1.0)
            waiting.remove(broken)


def worker_command(folder: Path, cells: list[Cell]) -> list[str]:
    """Return the command that works on cells."""
    return [sys.executable, "-m", "asr.compare.worker", str(folder), *(cell.name for cell in cells)]


def _settled(folder: Path, cell: Cell) -> bool:
    state = read_state(folder, cell.name)
    return state.key == cell.key and state.status in ("done", "failed")


def _run_process(folder: Path, cells: list[Cell], watch: Callable[[Cell, float], None]) -> int:
    """Run a worker over cells; return its exit status."""
    for cell in cells:
        (folder / cell.name / "state.json").unlink(missing_ok=True)
    command = worker_command(folder, cells)
    path = log_path(folder, cells[0].name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as log:
        # A session of its own: Ctrl-C is for this process, which ends the worker.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while True:
                try:
                    return process.wait(POLL_S)
                except subprocess.TimeoutExpired:
                    _tell(folder, cells, watch)
        finally:
            process.kill()
            process.wait()
            _tell(folder, cells, watch)


def _tell(folder: Path, cells: list[Cell], watch: Callable[[Cell, float], None]) -> None:
    for cell in cells:
        status = read_state(folder, cell.name).status
        if status == "running":
            watch(cell, read_fraction(folder, cell.name))
        elif status in ("done", "failed"):
            watch(cell, 1.0)


def _reason(log: Path, ended: int) -> str:
    how = f"signal {-ended}" if ended < 0 else f"status {ended}"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    hint = ", which the system sends when memory runs out" if ended == -9 else ""
    return f"its process ended with {how}{hint}" + (
        f"; last line: {lines[-1][:200]}" if lines and not hint else ""
    )
