"""Processes to measure that take turns."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from asr.errors import UserError
from asr.measure import Seconds


class Turns:
    """Waits for a line before each turn, and prints the wall time of the turn."""

    def __init__(self) -> None:
        self.started = 0.0

    def next(self) -> None:
        """End a turn, if there was one, and wait for the next; end the process without one."""
        if self.started:
            print(time.perf_counter() - self.started, flush=True)
        if not sys.stdin.readline():
            os._exit(0)
        self.started = time.perf_counter()


class Worker:
    """A process that works in turns, stopped in between with the processes that it started.

    On entry it has had one turn, which loads and warms up; leaving the block ends it.
    """

    def __init__(self, *arguments: str, variables: dict[str, str]) -> None:
        """Start a program with its arguments, and the variables in place of OpenMP's."""
        others = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            env=others | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.turn()

    def turn(self) -> Seconds:
        """Return the time of a turn."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        os.killpg(self.process.pid, signal.SIGCONT)
        before = sum(cpu_s(self.process.pid).values())
        with contextlib.suppress(BrokenPipeError):  # it has ended, which the end of its output says
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        for line in self.process.stdout:  # training prints lines of its own
            with contextlib.suppress(ValueError):
                taken = Seconds(float(line), sum(cpu_s(self.process.pid).values()) - before)
                os.killpg(self.process.pid, signal.SIGSTOP)
                return taken
        raise UserError(f"a worker ended with status {self.process.wait()}")

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)


def end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """End the processes of a group, and wait for the first of them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# A group instead of the children in /proc/<pid>/task/…/children, which not every kernel has.
def members(group: int) -> Iterator[int]:
    """Yield the processes of a group."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        if (fields := _stat(path)) and int(fields[2]) == group:
            yield int(path.parent.name)


def cpu_s(group: int) -> dict[int, float]:
    """Return the CPU seconds so far of the processes of a group, by process."""
    stats = {pid: _stat(Path(f"/proc/{pid}/stat")) for pid in members(group)}
    ticks = os.sysconf("SC_CLK_TCK")
    return {pid: (int(fields[11]) + int(fields[12])) / ticks for pid, fields in stats.items() if fields}


def _stat(path: Path) -> list[str]:
    """Return what follows the name in a `/proc/<pid>/stat`; empty for a process that has ended."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def spread(times: Sequence[Seconds], clock: str) -> str:
    """Return median (smallest … largest) by the clock `cpu` or `wall`."""
    seconds = [taken.by(clock) for taken in times]
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} … {max(seconds):.2f})"
