"""Time of a full forward pass over a split, with all models and mechanisms side by side.

Every batch goes through all models in turn, once per repeat, so that disturbances affect them alike. Loading,
filter banks and search are not timed.
"""

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from asr.benchmark.timer import Seconds, in_turns, now, time_of, torch_threads
from asr.experiment.records import Conditions, ForwardTimes


@dataclass
class Runner:
    """A model with a mechanism, and the times of its forward passes.

    Attributes:
        forward: passes the inputs of a batch through the model, which is in evaluation mode on its device.
        input_key: models with the same key have the same inputs.
        taken: total time over all batches, per repeat.
        error: reason why the model cannot run; it is skipped from then on.
    """

    forward: Callable[..., Any]
    input_key: str
    taken: list[Seconds] = field(default_factory=list)
    error: str = ""


class Passes(Protocol):
    """Models, and the batches that go through them.

    Attributes:
        runners: the models.
        batches: number of batches.
    """

    runners: list[Runner]
    batches: int

    def inputs(self, number: int) -> dict[str, tuple[Any, ...]]:
        """Return the inputs of a batch by `Runner.input_key`; models without inputs have no such batch."""


@torch.inference_mode()
def forward_times(
    passes: Passes, *, repeats: int, device: str, threads: int, advance: Callable[[float], None]
) -> tuple[list[ForwardTimes], Conditions]:
    """Time every model on every batch.

    Args:
        passes: models and batches.
        repeats: passes of each model over each batch.
        device: `cpu` or `cuda`.
        threads: CPU threads; 0: PyTorch's default.
        advance: called with the completed fraction.

    Returns:
        The times of each model, and the load on the machine meanwhile.
    """
    runners = passes.runners
    for runner in runners:
        runner.taken = [Seconds()] * repeats
    others = OtherProcesses()
    with torch_threads(threads):
        for number in range(passes.batches):
            inputs = passes.inputs(number)
            turns = {
                index: partial(_run, runner, inputs[runner.input_key], device)
                for index, runner in enumerate(runners)
                if runner.input_key in inputs
            }
            for index, times in in_turns(turns, repeats, warm_up=1 if number == 0 else 0).items():
                runner = runners[index]
                runner.taken = [x + y for x, y in zip(runner.taken, times, strict=True)]
            advance((number + 1) / passes.batches)
        conditions = Conditions(
            device=device,
            threads=torch.get_num_threads(),
            wall_s=sum(taken.wall_s for runner in runners for taken in runner.taken),
            cpu_s=sum(taken.cpu_s for runner in runners for taken in runner.taken),
            other_cpus=others.cpus(),
        )
    return [_row(runner) for runner in runners], conditions


def _row(runner: Runner) -> ForwardTimes:
    """Return the times of a model, or its error."""
    wall_s, cpu_s = ([x.by(clock) for x in runner.taken if not runner.error] for clock in ("wall", "cpu"))
    return ForwardTimes(
        forward_s=statistics.median(wall_s) if wall_s else None,
        forward_cpu_s=statistics.median(cpu_s) if cpu_s else None,
        forward_repeats_s=wall_s,
        forward_cpu_repeats_s=cpu_s,
        error=runner.error,
    )


class OtherProcesses:
    """Measures how many CPUs other processes have kept busy since it was created.

    Compares the busy time of all CPUs in /proc/stat with the CPU time of this process. Unlike the load
    average, it does not remember what ran before.

    Args:
        stat: file in the format of /proc/stat.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self.stat = stat
        self.started = self._read()

    def cpus(self) -> float | None:
        """Return the mean number of busy CPUs; None where /proc/stat is missing."""
        wall_s, busy_s, own_s = (now - then for now, then in zip(self._read(), self.started, strict=True))
        if busy_s <= 0 or wall_s <= 0:  # no such file, or a sandbox that does not fill it in
            return None
        return max(0.0, (busy_s - own_s) / wall_s)

    def _read(self) -> tuple[float, float, float]:
        """Return wall-clock time, busy time of all CPUs (0 if unknown) and CPU time of this process."""
        try:
            fields = [int(field) for field in self.stat.read_text().split("\n")[0].split()[1:]]
        except (OSError, ValueError):
            fields = []
        user, nice, system, _, _, irq, softirq, steal = (fields + 8 * [0])[:8]  # guest is part of user
        ticks_per_s = os.sysconf("SC_CLK_TCK") if fields else 1  # Windows has neither file nor sysconf
        busy_s = (user + nice + system + irq + softirq + steal) / ticks_per_s
        read = now()
        return read.wall_s, busy_s, read.cpu_s


def _run(runner: Runner, inputs: tuple[Any, ...], device: str) -> Seconds:
    """Time a forward pass; a model that can't run takes no time from then on."""
    if runner.error:
        return Seconds()
    try:
        return time_of(partial(runner.forward, *inputs), device)
    except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
        runner.error = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Seconds()
