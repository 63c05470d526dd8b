"""Time and peak memory of work: wall-clock and CPU time, measured in turns, and memory allocated by a call.

On a shared machine, the same work takes a different time a minute later. Turns are interleaved, so that other
load affects all tasks alike, and their ratios hold.
"""

import ctypes
import gc
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

LEAST_ROUNDS = 5  # minimum, even beyond the time limit, for quartiles
STATUS = Path("/proc/self/status")
M_MMAP_THRESHOLD, USUAL_THRESHOLD = -3, 2**17  # in malloc.h; glibc's own value, in bytes

Name = TypeVar("Name")


@dataclass(frozen=True)
class Seconds:
    """Wall-clock time, and CPU time of all threads of this process."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def __sub__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)

    def __mul__(self, factor: float) -> "Seconds":
        return Seconds(self.wall_s * factor, self.cpu_s * factor)

    def by(self, clock: str) -> float:
        """Return the time by the clock `cpu` or `wall`."""
        return self.cpu_s if clock == "cpu" else self.wall_s


def usual_clock(device: str) -> str:
    """Return `cpu` for work on the CPU, because other load affects CPU time less, else `wall`."""
    return "cpu" if device == "cpu" else "wall"


def now(device: str = "cpu") -> Seconds:
    """Return the reading of both clocks, once the device has finished its queued work."""
    if device != "cpu":
        torch.cuda.synchronize(device)
    return Seconds(time.perf_counter(), time.process_time())


def time_of(work: Callable[[], object], device: str = "cpu") -> Seconds:
    """Return the time of a call that works on this device."""
    started = now(device)
    work()
    return now(device) - started


def in_turns(
    turns: Mapping[Name, Callable[[], Seconds]],
    rounds: int,
    *,
    warm_up: int = 1,
    limit_s: float = math.inf,
    collect: bool = False,
    advance: Callable[[], object] = lambda: None,
) -> dict[Name, list[Seconds]]:
    """Return the times of several tasks, each with one turn per round.

    Args:
        turns: tasks by name: functions that do the work and return its time, e.g. from `time_of`.
        rounds: maximum number of timed rounds.
        warm_up: number of additional rounds at the beginning, which don't count.
        limit_s: time after which no further round starts; at least `LEAST_ROUNDS` run.
        collect: whether to collect garbage before each turn, and none during it.
        advance: called after each turn, also of the warm-up.

    Example:
        >>> times = in_turns({"short": lambda: Seconds(1.0), "long": lambda: Seconds(2.0)}, rounds=3)
        >>> [taken.wall_s for taken in times["long"]]
        [2.0, 2.0, 2.0]
    """
    taken: dict[Name, list[Seconds]] = {name: [] for name in turns}
    started, collects = time.perf_counter(), gc.isenabled()
    if collect:
        gc.disable()
        # Later collections skip what exists now: going through it would empty the caches before a turn.
        gc.collect()
        gc.freeze()
    try:
        for number in range(-warm_up, rounds):
            if number >= LEAST_ROUNDS and time.perf_counter() - started > limit_s:
                break
            for name, turn in turns.items():
                if collect:
                    gc.collect()
                seconds = turn()
                if number >= 0:
                    taken[name].append(seconds)
                advance()
    finally:
        if collect:
            gc.unfreeze()
        if collects:
            gc.enable()
    return taken


def quartiles(seconds: Sequence[float] | NDArray[np.float64]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile of times, which are robust to a disturbed one.

    Example:
        >>> quartiles([1.0, 2.0, 3.0, 4.0, 90.0])
        (2.0, 3.0, 4.0)
    """
    low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
    return low, median, high


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run with this number of PyTorch threads on the CPU; 0 leaves the number unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def can_measure_memory(device: str) -> bool:
    """Return whether peak memory can be measured on a device: on any GPU, and on the CPU under Linux."""
    return device != "cpu" or Path("/proc/self/clear_refs").exists()


def peak_resident_mib(*, children: bool = False) -> float:
    """Return the peak resident memory of this process, or of its largest ended child; 0 on Windows."""
    if sys.platform == "win32":
        return 0.0
    import resource

    peak = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # macOS counts bytes, Linux KiB


def peak_bytes_of(call: Callable[[], object], device: str) -> int | None:
    """Return the peak memory of a call in this process, minus the memory in use before.

    On the CPU, this is the resident set, which includes other threads of the process. Return None if it can't
    be measured.
    """
    if device != "cpu":
        return peak_allocated_bytes(call, device)
    if not can_measure_memory("cpu"):
        return None
    return max(0, peak_resident_bytes(call))


def peak_allocated_bytes(call: Callable[[], object], device: str) -> int:
    """Return the peak of a GPU's memory during a call, minus the memory in use before."""
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    call()
    return torch.cuda.max_memory_allocated(device) - held


def peak_resident_bytes(call: Callable[[], object]) -> int:
    """Return the peak of this process's resident set during a call, minus its size before."""
    with nothing_kept():
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present resident set
        held = status_bytes("VmRSS")
        call()
        return status_bytes("VmHWM") - held


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Make glibc's malloc give the system the memory that it keeps and what the block frees.

    Otherwise a call would reuse kept memory unnoticed, and its peak would depend on what ran before.
    """
    malloc = ctypes.CDLL(None)
    # Set by the user, or by `asr` (asr.cli.keep_freed_memory).
    kept = hasattr(malloc, "mallopt") and os.environ.get("MALLOC_MMAP_THRESHOLD_")
    if kept:
        malloc.mallopt(M_MMAP_THRESHOLD, USUAL_THRESHOLD)
    if trim := getattr(malloc, "malloc_trim", None):
        trim(0)
    try:
        yield
    finally:
        if kept:
            malloc.mallopt(M_MMAP_THRESHOLD, int(kept))


def status_bytes(key: str) -> int:
    """Return an entry of /proc/self/status, e.g. `VmRSS`."""
    found = re.search(rf"{key}:\s+(\d+) kB", STATUS.read_text())
    if found is None:
        raise RuntimeError(f"{STATUS} has no {key}")
    return 1024 * int(found[1])
