"""Systems that run in turns on the same batches, and the time that each takes.

Every batch goes through all systems in turn, once per repeat, so that disturbances affect them alike.
Loading, filter banks and search are not timed.
"""

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from asr.experiment.records import Conditions, ForwardTimes
from asr.measure import Seconds, in_turns, now, time_of, torch_threads

Name = TypeVar("Name")


@dataclass
class Runner:
    """A system that takes turns.

    Attributes:
        forward: passes the inputs of a batch through the model, which is in evaluation mode on its device,
            and returns its outputs.
        input_key: systems with the same key have the same inputs.
        prepare: called before every turn, untimed: switches a model that several systems share.
        warm: whether it has run before; the first run, which loads code and builds masks, isn't timed.
        taken: total time over all batches, per repeat.
        error: reason why the model can't run; it is then skipped.
    """

    forward: Callable[..., Any]
    input_key: str = ""
    prepare: Callable[[], object] | None = None
    warm: bool = False
    taken: list[Seconds] = field(default_factory=list)
    error: str = ""

    def turn(
        self, inputs: tuple[Any, ...], device: str, keep: Callable[[Any], None] | None = None
    ) -> Seconds:
        """Return the time of a run on a batch; a model that can't run is skipped from then on.

        Args:
            inputs: arguments of `forward`.
            device: device of the model.
            keep: called with the outputs, untimed.
        """
        if self.error:
            return Seconds()
        outputs: list[Any] = []
        try:
            if self.prepare:
                self.prepare()
            taken = time_of(lambda: outputs.append(self.forward(*inputs)), device)
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            self.error = (str(error).strip() or type(error).__name__).splitlines()[0]
            return Seconds()
        self.warm = True
        if keep:
            keep(outputs.pop())
        return taken


def in_turns_on(
    inputs: Mapping[str, tuple[Any, ...]],
    runners: Mapping[Name, Runner],
    *,
    device: str,
    repeats: int = 1,
    keep: Callable[[Name, Any], None] | None = None,
) -> dict[Name, list[Seconds]]:
    """Run systems in turns on a batch, and return the times of each.

    Args:
        inputs: inputs of the batch by `Runner.input_key`; systems without inputs have no turn.
        runners: systems by name; systems that haven't run yet first have an uncounted turn.
        device: device of all systems.
        repeats: number of turns of each.
        keep: called, untimed, with name and outputs after every counted turn.
    """
    here = {name: runner for name, runner in runners.items() if runner.input_key in inputs}
    for runner in here.values():
        if not runner.warm:
            runner.turn(inputs[runner.input_key], device)
    turns = {
        name: partial(runner.turn, inputs[runner.input_key], device, partial(keep, name) if keep else None)
        for name, runner in here.items()
    }
    return in_turns(turns, repeats, warm_up=0)


class Passes(Protocol):
    """Models, and the batches that go through them.

    Attributes:
        runners: the models.
        batches: number of batches.
    """

    runners: list[Runner]
    batches: int

    def inputs(self, number: int) -> dict[str, tuple[Any, ...]]:
        """Return the inputs of a batch by `Runner.input_key`; models without inputs don't have this batch."""


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
        The times of each model, and the load on the machine during the measurement.
    """
    runners = passes.runners
    for runner in runners:
        runner.taken = [Seconds()] * repeats
    others = OtherProcesses()
    with torch_threads(threads):
        for number in range(passes.batches):
            inputs = passes.inputs(number)
            turns = in_turns_on(inputs, dict(enumerate(runners)), device=device, repeats=repeats)
            for index, times in turns.items():
                runner = runners[index]
                runner.taken = [x + y for x, y in zip(runner.taken, times, strict=True)]
            advance((number + 1) / passes.batches)
        taken = sum((taken for runner in runners for taken in runner.taken), Seconds())
        conditions = others.conditions(device, taken)
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
    """Measures how many CPUs other processes have kept busy since this object was created.

    It compares the busy time of all CPUs in /proc/stat with the CPU time of this process. Unlike the load
    average, it isn't affected by earlier work.

    Args:
        stat: file in the format of /proc/stat.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self.stat = stat
        self.started = self._read()

    def conditions(self, device: str, taken: Seconds) -> Conditions:
        """Return the state of the machine since then, given the time of the timed work."""
        return Conditions(device, torch.get_num_threads(), taken.wall_s, taken.cpu_s, self.cpus())

    def cpus(self) -> float | None:
        """Return the mean number of busy CPUs; None if /proc/stat is missing."""
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
