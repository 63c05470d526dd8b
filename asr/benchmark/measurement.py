"""The measurements of a benchmark, length by length, kept on disk until all are complete."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from asr.benchmark.mechanisms import Timing, measure
from asr.benchmark.memory import Memory, TooLarge, largest_batch, peak_memory_bytes
from asr.benchmark.names import measured_names
from asr.benchmark.options import Options
from asr.benchmark.problem import BenchProblem
from asr.config import values_affecting
from asr.environment import processor
from asr.errors import UserError
from asr.measure import can_measure_memory
from asr.model.options import ModelConfig
from asr.records.job import Job, identity

GIB = 2**30
NEAR = 0.97  # share of the batch expected to fit that is tried first at a length


class Measurement:
    """Measures what the options ask for; an interrupted measurement with the same options continues.

    Args:
        options: options of `asr bench`, with a device that exists.
        out: results file; results so far lie beside it, in `<name>.unfinished.jsonl`.
        preset: architecture of models.

    Attributes:
        timings, memory: results.
        too_large: a line for every mechanism and length of which not one sequence fits into memory.
        reused: number of results from an interrupted benchmark.

    Raises:
        UserError: the largest batch was asked for where memory can't be measured.
    """

    def __init__(self, options: Options, out: Path, preset: ModelConfig | None = None) -> None:
        measurable = can_measure_memory(options.device)
        if options.batch == "max" and not measurable:
            raise UserError("batch=max: expected a GPU or Linux, where memory can be measured")
        self.options, self.names = options, measured_names(options)
        self.preset = preset or ModelConfig()
        self.sizes = options.batch == "max" or (options.peak_memory and measurable)
        self.timings: list[Timing] = []
        self.memory: list[Memory] = []
        self.too_large: list[str] = []
        settings = values_affecting(options, "result") | {"preset": asdict(self.preset)}
        # Times and sizes depend on the machine and on the libraries, too.
        machine = {"device": options.device, "torch": torch.__version__, "processor": processor()}
        # An interruption in the last of several hours must not lose the others.
        self.job = Job(out.with_suffix(".unfinished.jsonl"), identity("bench", settings, **machine))
        self.reused = len(self.job.stored)

    @property
    def steps(self) -> int:
        """Number of calls of `advance` in `run`."""
        cells = len(self.options.lengths) * len(self.options.passes)
        return cells * (1 + len(self.names) * self.sizes)

    def run(self, advance: Callable[[str], None]) -> None:
        """Measure all lengths and passes; `advance` is called before each step with its description."""
        with closing(self.job):
            for length in self.options.lengths:
                for passes in self.options.passes:
                    self._measure(length, passes, advance)

    def forget(self) -> None:
        """Remove the file of results so far, once the results are written."""
        self.job.remove()

    def _measure(self, length: int, passes: str, advance: Callable[[str], None]) -> None:
        largest = self.options.batch == "max"
        batches = {} if largest else dict.fromkeys(self.names, int(self.options.batch))
        for name in self.names if self.sizes else ():
            what = f"N={length}: memory of {name}, {passes}"
            advance(what)
            found = self.job.obtain(what, partial(self._memory, name, length, passes))
            if found is None:
                self.too_large.append(f"{what}: one sequence needs more than {self.options.memory:g} GiB")
                continue
            self.memory.append(Memory(**found))
            batches[name] = self.memory[-1].batch
        what = f"N={length}: time, {passes}"
        advance(what)
        problems = {name: self._problem(length, batch) for name, batch in batches.items()}
        rows = self.job.obtain(what, partial(self._timings, problems, passes))
        self.timings += [Timing(**row) for row in rows]

    def _timings(self, problems: dict[str, BenchProblem], passes: str) -> list[dict[str, Any]]:
        options = self.options
        clock = options.clock if options.device == "cpu" else "wall"
        limits = options.threads, options.rounds, options.seconds
        found = measure(problems, options.baseline, clock, *limits, (passes,)) if problems else []
        return [asdict(timing) for timing in found]

    def _memory(self, name: str, length: int, passes: str) -> dict[str, Any] | None:
        """Return the peak memory of a batch as asked for, or None if not one sequence fits."""
        if self.options.batch != "max":
            batch = int(self.options.batch)
            peak = peak_memory_bytes(name, self._problem(length, batch), passes)
            return asdict(Memory(name, length, batch, passes, peak))
        limit = int(self.options.memory * GIB)
        before = [x for x in self.memory if (x.name, x.passes) == (name, passes)]
        first = int(NEAR * before[-1].batch * before[-1].length / length) if before else 1

        def peak_bytes(batch: int) -> int | None:
            try:
                return peak_memory_bytes(name, self._problem(length, batch), passes, limit)
            except TooLarge:
                return None

        found = largest_batch(peak_bytes, limit, max(1, first))
        return None if found is None else asdict(Memory(name, length, found[0], passes, found[1]))

    def _problem(self, length: int, batch: int) -> BenchProblem:
        x = self.options
        feedforward = x.feedforward if x.unit == "layer" else 0
        setup = x.heads, x.head_dim, x.precision, x.device, x.seed, x.unit, feedforward
        return BenchProblem(*setup, batch=batch, length=length, preset=self.preset, loss=x.loss)
