"""The timer of all measurements: wall-clock and CPU time, and work that is timed in turns.

On a shared machine, the same work takes a different time a minute later. Turns are interleaved, so that other
load affects all tasks alike, and their ratio holds.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

LEAST_ROUNDS = 3  # run even beyond the time limit, for a median

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
    """Return the time of a call whose work is on this device."""
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
) -> dict[Name, list[Seconds]]:
    """Return the times of several tasks, each of which has one turn in every round.

    Args:
        turns: tasks by name: functions that do the work and return its time, e.g. by `time_of`.
        rounds: maximum number of timed rounds.
        warm_up: number of earlier rounds, which don't count.
        limit_s: time after which no further round starts; at least `LEAST_ROUNDS` run.
        collect: as timeit does, collect no garbage during a turn; each round begins with a collection.

    Example:
        >>> times = in_turns({"short": lambda: Seconds(1.0), "long": lambda: Seconds(2.0)}, rounds=3)
        >>> [taken.wall_s for taken in times["long"]]
        [2.0, 2.0, 2.0]
    """
    taken: dict[Name, list[Seconds]] = {name: [] for name in turns}
    started, collects = time.perf_counter(), gc.isenabled()
    if collect:
        gc.disable()
    try:
        for number in range(-warm_up, rounds):
            if number >= LEAST_ROUNDS and time.perf_counter() - started > limit_s:
                break
            if collect:
                gc.collect()
            for name, turn in turns.items():
                seconds = turn()
                if number >= 0:
                    taken[name].append(seconds)
    finally:
        if collects:
            gc.enable()
    return taken


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run with this number of PyTorch threads on the CPU; 0 leaves it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
