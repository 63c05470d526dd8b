"""Measures operations on random input as an experiment: a row for each name, length and pass."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from asr import config
from asr.attention import own
from asr.attention.clustered import ClusteredAttention
from asr.attention.layer import OwnParameterLayer
from asr.attention.table import class_named, default_names, missing_kernels
from asr.config import Given, values_affecting
from asr.config.names import alternatives
from asr.config.schedule import layer_factors
from asr.environment import describe_environment, pick_device, pick_precision, processor
from asr.errors import UserError
from asr.experiment.crossings import causal_form
from asr.experiment.operations import PARTS, StepSeconds, build_operation, run_once, split_threads
from asr.experiment.options import ALL, GROUPING, BenchOptions
from asr.experiment.peaks import TooLarge, largest_batch, peak_memory_bytes
from asr.experiment.random_input import Problem
from asr.experiment.records import Candidate, Evaluation
from asr.experiment.results import Results
from asr.experiment.variant import Variant, check_precisions, given_variants, mechanism_of
from asr.measure import Seconds, can_measure_memory, in_turns, torch_threads
from asr.model.options import ModelConfig
from asr.records.job import Job, identity
from asr.records.run_folder import RunFolder
from asr.training.config import run_options, train_options

GIB, MIB = 2**30, 2**20
QUADRATIC = "N²"  # the table's entry for mechanisms with quadratic time; all others are linear
NEAR = 0.97  # fraction of the expected largest batch that is tried first at a length


def bench_options(given: Given) -> BenchOptions:
    """Return the options of `asr bench`: the named figure's, if any, and overrides."""
    values = config.by_key(given)
    figure = values.get("figure")
    drawn = config.flat(config.group_values("figure", figure)) if figure else {}
    options = config.parse(BenchOptions, drawn | values)
    # As written: `name@2` isn't the name of a mechanism.
    options.attentions = given_variants(
        options.attentions, lambda names: [*map(own.load, alternatives(names))]
    )
    options.baseline = own.load(options.baseline)
    measured_names(options)  # refuses what can't be measured
    return options


def preset_named(name: str, frames: str = "") -> ModelConfig:
    """Return the architecture of a preset, or of a run; `frames`, if given, replaces its own.

    Raises:
        UserError: the run has a pretrained encoder, or the schedule doesn't fit.
    """
    run = RunFolder(name)
    if not run.options.exists():
        # Composed with all other options of a training, because presets are a group of its configuration.
        return train_options({"model": name} | ({"model.frames": frames} if frames else {})).model
    model = run_options(run).model
    if model.encoder:
        raise UserError(
            f"model={name}: expected a model of this project, found the encoder {model.encoder}: "
            "asr compare model=… data=… times it"
        )
    own = replace(model, frames=frames or model.frames)
    layer_factors(own.frames, own.layers)
    return own


def measured_names(options: BenchOptions) -> list[str]:
    """Return what to measure: `attentions` with `all` and `causal` resolved.

    Raises:
        UserError: an unknown mechanism, or one that can't be measured with the other options.
    """
    for name in options.attentions:
        if name != ALL:
            _check_name(name, options)
    every = [name for name in default_names() if options.unit != "mechanism" or not has_own_parameters(name)]
    named = [x for name in options.attentions for x in (every if name == ALL else [name])]
    if options.causal == "both":
        forms = [x for name in named for x in (name, causal_form(name)) if x]
        if len(forms) == len(named) and not options.figure:
            raise UserError(f"causal=both: has no effect: none of {', '.join(named)} has a causal form")
        named = forms
    if GROUPING in options.passes:
        for name in named:
            if not groups_queries(name):
                raise UserError(f"attentions={name}: expected groups of queries with passes={GROUPING}")
    return list(dict.fromkeys(named))


def _check_name(name: str, options: BenchOptions) -> None:
    variant = Variant.read(name)
    head, (_, threads) = mechanism_of(name), split_threads(variant.attention)
    if options.unit != "model" and name != variant.attention:
        raise UserError(f"attentions={name}: expected unit=model, found {options.unit}")
    if threads == 0:
        raise UserError(f"attentions={name}: expected at least 1 thread")
    if threads and options.clock == "cpu":
        raise UserError(f"attentions={name}: CPU time adds up over threads; use clock=wall")
    if name.startswith("peer:"):
        if options.unit != "mechanism":
            raise UserError(
                f"attentions={name}: expected a mechanism of this program with unit={options.unit}"
            )
    elif options.unit == "mechanism" and has_own_parameters(head):
        raise UserError(f"attentions={name}: has parameters of its own; use unit=layer or unit=model")


def has_own_parameters(name: str) -> bool:
    """Return whether a mechanism is measured as part of a layer only."""
    return issubclass(class_named(mechanism_of(name)), OwnParameterLayer)


def grows(name: str) -> bool:
    """Return whether a mechanism's time is quadratic in the length."""
    return not name.startswith("peer:") and class_named(mechanism_of(name)).time == QUADRATIC


def groups_queries(name: str) -> bool:
    """Return whether a mechanism groups queries, which passes=grouping measures separately."""
    if name.startswith("peer:"):
        return False
    return issubclass(class_named(mechanism_of(name)), ClusteredAttention)


def time_in_turns(
    problems: Mapping[str, Problem],
    passes: str,
    clock: str,
    threads: int,
    rounds: int,
    limit_s: float,
    advance: Callable[[], object] = lambda: None,
) -> list[Evaluation]:
    """Time operations in turns; return a row for each.

    Args:
        problems: shapes by name, as taken by `build_operation`; `full@2` runs with two threads.
        passes: `forward`, `forward+backward` or `grouping`.
        clock: clock of the parts of a training step, `cpu` or `wall`.
        threads: CPU threads for names that don't end in a number of threads.
        rounds: maximum number of rounds, after one warm-up round.
        limit_s: time after which no further round starts; at least five rounds run.
        advance: called after each turn.
    """
    given = {problem: problem.tensors() for problem in problems.values()}  # equal problems share their input

    def turn(name: str) -> Seconds:
        once = partial(run_once, operations[name], *given[problems[name]], passes)
        wanted = split_threads(Variant.read(name).attention)[1] or threads
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)
            once()  # wakes the threads, which would otherwise slow the timed call
        return once()

    with torch_threads(threads):
        operations = {name: build_operation(name, problem) for name, problem in problems.items()}
        turns = {name: partial(turn, name) for name in problems}
        taken = in_turns(turns, rounds, limit_s=limit_s, collect=True, advance=advance)
    rows = [row_of(name, problem, passes, taken[name]) for name, problem in problems.items()]
    for row in rows:
        row.parts_s = _medians_of_parts(taken[row.variant], clock)
    return rows


def row_of(
    name: str,
    problem: Problem,
    passes: str,
    taken: Sequence[Seconds] = (),
    error: str | None = None,
    status: str = "",
) -> Evaluation:
    """Return the row of an operation, with its times or the error that stopped it."""
    wall_s, cpu_s = [x.wall_s for x in taken], [x.cpu_s for x in taken]
    return Evaluation(
        candidate=problem.unit,
        seed=problem.seed,
        split=f"N={problem.length}, {passes}",
        variant=name,
        decoder="",
        folder="",
        status=status or ("failed" if error else "done"),
        error=error,
        forward_s=statistics.median(wall_s) if wall_s else None,
        forward_cpu_s=statistics.median(cpu_s) if cpu_s else None,
        forward_repeats_s=wall_s,
        forward_cpu_repeats_s=cpu_s,
        utterances=problem.batch,
        length=problem.length,
        passes=passes,
    )


def _medians_of_parts(taken: Sequence[Seconds], clock: str) -> dict[str, float]:
    steps = [[part.by(clock) for part in step.parts] for step in taken if isinstance(step, StepSeconds)]
    return {name: statistics.median(x) for name, x in zip(PARTS, zip(*steps, strict=True), strict=False)}


class Bench:
    """Measures the operations in the options; an interrupted measurement with the same options continues.

    Results so far are kept beside the results file, in `<name>.unfinished.jsonl`.

    Args:
        options: options of `asr bench`.

    Attributes:
        rows: measured operations; an operation has failed if not even one sequence fits into memory.
        reused: number of results from an interrupted benchmark.
        precision: precision in use, with the reason.
        kernels: sentence about mechanisms that run without compiled kernels, with the reason; may be empty.

    Raises:
        UserError: an unknown name, a missing device, or batch=max if memory can't be measured.
    """

    def __init__(self, options: BenchOptions) -> None:
        device = pick_device(options.device)
        measurable = can_measure_memory(device)
        if options.batch == "max" and not measurable:
            raise UserError("batch=max: expected a GPU or Linux, where memory can be measured")
        self.precision = pick_precision(options.precision, device)
        self.preset = (
            preset_named(options.model, options.frames) if options.unit == "model" else ModelConfig()
        )
        self.options = options = replace(
            options, device=device, precision=self.precision.name, frames=self.preset.frames
        )
        self.names = measured_names(options)
        check_precisions(map(Variant.read, self.names), device)
        # Mechanisms that the user asks to run without kernels say so in their names.
        plain = [x for x in self.names if not x.startswith("peer:") and "@reference" not in x]
        self.kernels = missing_kernels(map(mechanism_of, plain), device)
        self.clock = options.clock if device == "cpu" else "wall"
        self.sizes = options.batch == "max" or (options.peak_memory and measurable)
        self.rows: list[Evaluation] = []
        settings = values_affecting(options, "result") | {"preset": asdict(self.preset)}
        settings.pop("lengths")  # each is a step of its own
        # Times and sizes depend on the machine and on the libraries, too.
        machine = {"device": options.device, "torch": torch.__version__, "processor": processor()}
        # An interruption in the last hour must not lose the hours before.
        self.job = Job(
            Path(options.out).with_suffix(".unfinished.jsonl"), identity("bench", settings, **machine)
        )
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
        names = []
        for name in self.names:
            if why := self._left_out(name, length, passes):
                self.rows.append(row_of(name, self._problem(length, 1), passes, error=why, status="missing"))
            else:
                names.append(name)
        batches = {} if largest else dict.fromkeys(names, int(self.options.batch))
        peaks: dict[str, int] = {}
        for name in names if self.sizes else ():
            what = f"N={length}: memory of {name}, {passes}"
            advance(what)
            measured = self.job.obtain(what, partial(self._peak, name, length, passes))
            if measured is None:
                error = f"one sequence needs more than {self.options.memory:g} GiB"
                self.rows.append(row_of(name, self._problem(length, 1), passes, error=error))
            else:
                batches[name], peaks[name] = measured
        without = f" without {', '.join(left)}" if (left := [x for x in self.names if x not in names]) else ""
        what = f"N={length}: time, {passes}{without}"
        advance(what)
        problems = {name: self._problem(length, batch) for name, batch in batches.items()}
        if not problems:
            return
        stored = self.job.obtain(what, partial(self._times, problems, passes))
        for row in (Evaluation(**values) for values in stored):
            row.peak_mib = peaks[row.variant] / MIB if row.variant in peaks else None
            self.rows.append(row)

    def _left_out(self, name: str, length: int, passes: str) -> str:
        """Return why a name isn't measured at a length: a call would take too long; empty: it is."""
        before = [x for x in self.rows if (x.variant, x.passes) == (name, passes)]
        if not before or not self.options.longest_call:
            return ""
        if before[-1].status == "missing":
            return before[-1].error or ""
        growth = length / before[-1].length
        expected_s = (before[-1].seconds(self.clock) or 0.0) * growth ** (2 if grows(name) else 1)
        if expected_s <= self.options.longest_call:
            return ""
        return f"not measured: more than {self.options.longest_call:g} s per call expected"

    def _times(self, problems: dict[str, Problem], passes: str) -> list[dict[str, Any]]:
        x = self.options
        rounds = x.rounds if x.baseline in problems or not x.longest_call else 1  # nothing to compare with
        limits = x.threads, rounds, x.seconds
        return [asdict(row) for row in time_in_turns(problems, passes, self.clock, *limits)]

    def _peak(self, name: str, length: int, passes: str) -> tuple[int, int] | None:
        """Return the batch, as requested, and its peak memory in bytes; None if no sequence fits."""
        if self.options.batch != "max":
            batch = int(self.options.batch)
            return batch, peak_memory_bytes(name, self._problem(length, batch), passes)
        limit = int(self.options.memory * GIB)
        before = [x for x in self.rows if (x.variant, x.passes, x.status) == (name, passes, "done")]
        first = int(NEAR * before[-1].positions / length) if before else 1

        def peak_bytes(batch: int) -> int | None:
            try:
                return peak_memory_bytes(name, self._problem(length, batch), passes, limit)
            except TooLarge:
                return None

        return largest_batch(peak_bytes, limit, max(1, first))

    def _problem(self, length: int, batch: int) -> Problem:
        x = self.options
        feedforward = x.feedforward if x.unit == "layer" else 0
        setup = x.heads, x.head_dim, x.precision, x.device, x.seed, x.unit, feedforward
        return Problem(*setup, batch=batch, length=length, preset=self.preset, loss=x.loss)

    def results(self) -> Results:
        """Return all measurements, with a description of the machine."""
        options, environment, model = self.options, describe_environment(), self.options.unit == "model"
        candidate = Candidate(options.unit, options.baseline, seeds=[options.seed], source="random weights")
        if model:
            candidate.layers, candidate.subsampling = self.preset.layers, self.preset.subsampling
        protocol = {"clock": self.clock, "baseline": options.baseline, "bench": asdict(options)}
        return Results(
            command=environment.pop("command"),
            protocol=protocol | {"kernels": self.kernels},
            environment=environment,
            candidates=[candidate],
            evaluations=self.rows,
        )
