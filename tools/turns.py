"""Do the same work in several ways, each in a process that is stopped while the others take their turns."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from asr.errors import UserError


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
    """A process that works in turns, stopped in between with the processes that it started."""

    def __init__(self, *arguments: str, variables: dict[str, str]) -> None:
        """Start a program with its arguments, and the variables in place of OpenMP's."""
        others = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            env=others | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def turn(self) -> tuple[float, float]:
        """Return wall and CPU time of a turn in seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        os.killpg(self.process.pid, signal.SIGCONT)
        before = group_cpu_s(self.process.pid)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for line in self.process.stdout:  # training prints lines of its own
            with contextlib.suppress(ValueError):
                wall_s = float(line)
                cpu_s = group_cpu_s(self.process.pid) - before
                os.killpg(self.process.pid, signal.SIGSTOP)
                return wall_s, cpu_s
        raise UserError(f"a worker ended with status {self.process.wait()}")

    def end(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def group_cpu_s(group: int) -> float:
    """Return the CPU time so far of the processes of a group in seconds."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def spread(seconds: tuple[float, ...]) -> str:
    """Return median (smallest … largest)."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} … {max(seconds):.2f})"
