"""Runs a trained model in several variants: measures, intervals, times and ratios to a baseline.

The variants take turns on each batch, so that other load affects all of them alike. Their outputs are stored
batch by batch, so that an interrupted experiment continues.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress, TaskID
from torch import Tensor

from asr.attention.table import joined_name, layer_names
from asr.config import user_code
from asr.config.schedule import layer_factors
from asr.console import counted, open_console, progress
from asr.environment import describe_environment, processor
from asr.errors import UserError
from asr.experiment.engines import ENGINE, engine_version, unavailable
from asr.experiment.layer_search import DIVERGENCE, each_layer_on, search_layers
from asr.experiment.options import FULL, GREEDY, LAYERS, CompareConfig
from asr.experiment.records import Candidate, Difference, Evaluation, Failure
from asr.experiment.request import Request
from asr.experiment.results import Results, write_results
from asr.experiment.timing import Runner, in_turns_on
from asr.experiment.variant import Variant, check_precisions
from asr.experiment.workload import Exchanged, Outcome
from asr.files import check_writable, locked, write_json
from asr.measure import peak_bytes_of, usual_clock
from asr.records.job import Job
from asr.records.run_folder import RunFolder
from asr.scoring.statistics import Estimate, Interval, Values, bootstrap, percentiles, ratio_interval
from asr.training.options import recipe_module

FORMAT = 2  # of the journal; increases when stored outputs change their meaning
WRITTEN = str.maketrans(":* ", "-x-")  # replaces characters in file names
INPUTS = "inputs"  # what intervals are over
SAMPLES = 1000  # of the bootstrap: the same draws for all variants
Advance = Callable[[str], None]


def run_exchange(request: Request) -> tuple[Path, Results]:
    """Measure a trained model in every variant; return the folder and the results, which are stored there.

    Raises:
        UserError: a missing or unsuitable model, file or mechanism.
    """
    options = request.options
    folder = Path(options.folder or Path("exp", "compare", label_of(options.model).replace("/", "-")))
    check_writable(folder / "results.json")
    console = open_console(markup=False)
    for name, reason in unavailable(options.peers).items():
        console.print(f"skipped peers={name}: {reason}")
        options.peers.remove(name)
    with locked(folder, "asr compare"):
        if request.recipe is None and options.sweep == GREEDY:
            from asr.experiment.transcription import with_manifest

            options.data = with_manifest(options.data, folder)
        # All are opened before hours of work on the first.
        runs = [Exchange(workload, options, folder) for workload in workloads(request)]
        for run in runs:
            total = len(run.batches) * len(run.variants)
            if stored := total - run.todo:
                batches = counted(total, "stored batch", "stored batches")
                console.print(f"{run.workload.name}: reusing {stored:,} of {batches}")
            run.measure()
            if options.sweep == GREEDY:
                run.search_layers()
        results = collect(request, runs)
        write_results(results, folder)
    return folder, results


def _advance(bars: Progress, bar: TaskID, what: str) -> None:
    bars.update(bar, description=what, advance=1)


def workloads(request: Request) -> list[Exchanged]:
    """Return the workloads of the model: recordings, or the tasks of a recipe's module `workload`.

    That module defines `workloads(options, own)`; its arguments are the options of the comparison and the
    recipe's, an object of `WorkloadOptions` in its module `options`.
    """
    if request.recipe is None:
        from asr.experiment.transcription import Transcription

        return [Transcription(request.options)]
    module = recipe_module(request.recipe.name, "workload")
    assert module is not None
    chosen: list[Exchanged] = module.workloads(request.options, request.recipe)
    return chosen


def label_of(source: str) -> str:
    """Return the label of a model: the name of its folder or repository; for a run, also the recipe."""
    path = Path(source)
    run = RunFolder(path).options.exists()
    return "/".join(path.parts[-2:]) if run else next(x for x in reversed(path.parts) if "{" not in x)


def variants(options: CompareConfig, layers: int, frames: str) -> list[Variant]:
    """Return full attention, the baseline, all combinations of the axes, and the single variants.

    Of variants that are the same in each layer, only the first is returned. A greedy search starts with full
    attention only, and adds variants itself.

    Args:
        options: options of the comparison; names of mechanisms are canonical.
        layers: the model's number of layers.
        frames: the model's schedule of frame rates.
    """
    crossed: list[Variant] = []
    if options.sweep == LAYERS:
        crossed = [Variant(x) for x in swept(options.attentions, layers)]
        if options.frames:
            crossed += each_layer_on([int(x) for x in options.frames], layers, frames)
    elif not options.sweep:
        axes = (
            options.attentions or [FULL],
            ["" if x == frames else x for x in options.frames] or [""],
            options.layers or [0],
            ["", *(x for x in options.precisions if x != options.precision)],
        )
        crossed = [Variant(*values) for values in itertools.product(*axes)]
    single = [Variant.read(x) for x in (options.baseline, *options.candidates)]
    single += [Variant(ENGINE + x) for x in options.peers]
    found = list(dict.fromkeys([Variant(FULL), *single[:1]]))
    known = {_in_layers(x, options.precision, layers, frames) for x in found}
    for variant in (*crossed, *single[1:]):
        if (key := _in_layers(variant, options.precision, layers, frames)) not in known:
            known.add(key)
            found.append(variant)
    return found


def _in_layers(variant: Variant, precision: str, layers: int, frames: str) -> tuple[Any, ...]:
    """Return what a variant is in each layer: `2*3` is the same as `2` for three layers."""
    count = variant.layers or layers
    try:
        rates = layer_factors(variant.frames or frames, count)
        names = layer_names(variant.attention, count)
    except UserError:  # another program, or refused once the model has to run in it
        return (variant,)
    return (*names, *rates, variant.precision or precision)


def file_of(folder: Path, name: str, variant: str) -> Path:
    """Return the file with the predictions, or other content, of a variant in the folder of a workload."""
    return folder / f"{name}-{variant.translate(WRITTEN)}.json"


def swept(attentions: Sequence[str], layers: int) -> list[str]:
    """Return every mechanism, except full attention, in one layer at a time.

    Example:
        >>> swept(["full", "local-8"], 2)
        ['local-8*1,full*1', 'full*1,local-8*1']
    """
    return [
        joined_name([name if i == layer else FULL for i in range(layers)])
        for name in attentions
        if name != FULL
        for layer in range(layers)
    ]


class Exchange:
    """One workload with its model, in all variants.

    Args:
        workload: model and items.
        options: options of the comparison.
        folder: output folder.

    Attributes:
        workload, variants, runners: workload, its variants, and their runners.
        batches: indices of the items in each batch.
        search: steps of a search over layers, if there was one, as JSON data.

    Raises:
        UserError: the model can't run in a variant.
    """

    def __init__(self, workload: Exchanged, options: CompareConfig, folder: Path) -> None:
        self.workload, self.options, self.folder = workload, options, folder / workload.name
        self.batches = list(length_batches([item.length for item in workload.items], options.batch))
        self.journal = Job(self.folder / "outputs.jsonl", self._work())
        self.variants: list[Variant] = []
        self.runners: dict[Variant, Runner] = {}
        self._scored: dict[Variant, Outcome] = {}
        self.search: dict[str, Any] = {}
        self.add(variants(options, workload.layers, workload.frames))
        if options.sweep == GREEDY:
            for variant in (*map(Variant, options.attentions), *(Variant(FULL, x) for x in options.frames)):
                workload.use(variant)  # refuses before the first step

    def add(self, variants: Sequence[Variant]) -> None:
        """Add variants; raise UserError for one that the model can't run in."""
        check_precisions(variants, self.workload.device)
        for variant in variants:
            self.workload.use(variant)  # refuses what the model lacks
            if variant not in self.runners:
                self.variants.append(variant)
                self.runners[variant] = Runner(self.workload.run, prepare=partial(self.workload.use, variant))

    @property
    def todo(self) -> int:
        """Number of forward passes that aren't stored yet."""
        keys = {key for variant in self.variants for key in self._keys(variant)}
        return len(keys - self.journal.stored.keys())

    def _work(self) -> dict[str, Any]:
        """Return everything that stored outputs and times depend on, except variant and batch.

        As for cells of a comparison, the program isn't part of it: a commit doesn't invalidate finished work.
        """
        return {
            "command": "compare",
            "format": FORMAT,
            "code": user_code.all_digests(),
            "batch": self.options.batch,
            "backend": self.options.backend,
            **self.workload.settings(),
            "device": self.options.device,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processor": processor(),
        }

    def _keys(self, variant: Variant) -> list[str]:
        return [_key(variant, number) for number in range(len(self.batches))]

    def measure(self, what: str = "") -> None:
        """Run the variants in turn on each batch; store output, time and peak memory of each.

        A variant that can't run because memory runs out is left out; see `errors`.

        Args:
            what: text after the workload's name in the progress display.
        """
        try:
            with progress() as bars:
                bar = bars.add_task(f"{self.workload.name}{what}", total=self.todo)
                for number, batch in enumerate(self.batches):
                    missing = [x for x in self.variants if _key(x, number) not in self.journal.stored]
                    if missing:
                        items = [self.workload.items[index] for index in batch]
                        self._measure_batch(number, items, missing, partial(_advance, bars, bar))
            self._measure_memory()
        finally:
            self.journal.close()

    def _measure_batch(
        self, number: int, items: list[Any], variants: list[Variant], advance: Advance
    ) -> None:
        self.workload.use(Variant(FULL))  # first, so that inputs don't depend on an earlier variant
        inputs = self.workload.batch(items)
        # Run even if nothing is compared with it, because the first pass over a batch takes longer.
        reference = self.workload.reference(self._checked(self.workload.run(inputs), Variant(FULL)), items)
        device = self.workload.device
        full_s = None  # time in the same turns: times of another day aren't comparable
        for variant in [Variant(FULL), *(x for x in variants if x != Variant(FULL))]:
            kept: list[Any] = []

            def keep(variant: Variant, output: Any, kept: list[Any] = kept) -> None:
                if variant in variants:
                    kept += self.workload.keep(self._checked(output, variant), items, reference)

            runner = self.runners[variant]
            turns = in_turns_on({"": (inputs,)}, {variant: runner}, device=device, keep=keep)
            if not runner.error:
                (taken,) = turns[variant]
                seconds = taken.by(usual_clock(device))
                full_s = full_s or seconds
                if variant in variants:
                    entry = {"seconds": seconds, "full_s": full_s, "kept": kept}
                    self.journal.add(_key(variant, number), entry)
            if variant in variants:
                advance(f"{self.workload.name}: {variant}")

    def _measure_memory(self) -> None:
        """Measure a forward pass of each variant over the batch with the longest inputs."""
        missing = [x for x in self.variants if _key(x, "memory") not in self.journal.stored]
        missing = [x for x in missing if not self.runners[x].error]
        items = [self.workload.items[index] for index in self.batches[-1]]
        self.workload.use(Variant(FULL))
        inputs = self.workload.batch(items) if missing else {}
        for variant in missing:
            self.workload.use(variant)
            run = partial(self.workload.run, inputs)
            if not self.runners[variant].warm:  # code is loaded when it first runs
                run()
            self.journal.add(
                _key(variant, "memory"), {"peak_bytes": peak_bytes_of(run, self.workload.device)}
            )

    def _checked(self, output: Any, variant: Variant) -> Any:
        """Return a model's output; raise UserError if it has NaN."""
        if any(tensor.isnan().any() for tensor in _tensors(output)):
            raise UserError(
                f"model={self.workload.source}: expected numbers as output with attention {str(variant)!r}, "
                "found NaN (broken weights?)"
            )
        return output

    def search_layers(self) -> None:
        """Search for the mechanism and the frame rate of each layer; see `asr.experiment.layer_search`."""

        def measured(variants: list[Variant], step: int) -> list[Outcome | None]:
            self.add(variants)
            self.measure(f", step {step}")
            return [None if x in self.errors else self.outcome(x) for x in variants]

        options, workload = self.options, self.workload
        factors = [int(x) for x in options.frames]
        shape = workload.layers, workload.frames
        self.search = search_layers(measured, options.attentions, factors, *shape, options.limit)

    @property
    def errors(self) -> dict[Variant, str]:
        """Reasons why variants couldn't run."""
        return {variant: runner.error for variant, runner in self.runners.items() if runner.error}

    def evaluations(self, label: str, clock: str) -> list[Evaluation]:
        """Return an evaluation of each variant, and write its predictions.

        Args:
            label: label of the model.
            clock: `cpu` or `wall`, for the times.
        """
        rows = {
            variant: Evaluation(
                candidate=label,
                seed=0,
                split=self.workload.name,
                variant=str(variant),
                decoder=self.workload.decoder,
                folder=self.workload.name,
                status="failed" if variant in self.errors else "done",
                error=self.errors.get(variant),
            )
            for variant in self.variants
        }
        outcomes = self._outcomes()
        base = outcomes.get(Variant.read(self.options.baseline))
        for variant, outcome in outcomes.items():
            evaluation, peak = rows[variant], self.journal.stored[_key(variant, "memory")]["peak_bytes"]
            total = float(outcome.seconds.sum())
            evaluation.forward_s, evaluation.forward_cpu_s = (
                (total, None) if clock == "wall" else (None, total)
            )
            evaluation.peak_mib = None if peak is None else peak / 2**20
            evaluation.utterances = self.workload.examples
            evaluation.rates = {
                name: _entry(value, self._interval(outcome.samples[name]))
                for name, value in outcome.values.items()
            }
            if base:
                evaluation.ratios = {
                    name: _entry(
                        value / base.values[name], self._interval(outcome.samples[name], base.samples[name])
                    )
                    for name, value in outcome.values.items()
                    if base.values[name] > 0
                }
                evaluation.ratios["time"] = _entry(*outcome.time(base))
        return list(rows.values())

    def differences(self, label: str) -> list[Difference]:
        """Return the differences between variants, paired over inputs.

        Those of the main measure and of the divergence are between all variants; those of other measures, and
        all after a search, between each variant and full attention.
        """
        outcomes = self._outcomes()
        compared = []
        for (first, one), (second, other) in itertools.combinations(outcomes.items(), 2):
            main = [] if self.search else list(dict.fromkeys([*list(one.values)[:1], DIVERGENCE]))
            for name in one.values if first == Variant(FULL) else main:
                if name in one.values:
                    samples = other.samples[name] - one.samples[name]
                    value, interval = other.values[name] - one.values[name], self._interval(samples)
                    systems = (label, str(second)), (label, str(first))
                    estimate = Estimate.bootstrapped(value, interval, INPUTS)
                    compared.append(Difference(self.workload.name, name, *systems, estimate))
        return compared

    def _outcomes(self) -> dict[Variant, Outcome]:
        return {x: self.outcome(x) for x in self.variants if x not in self.errors}

    def outcome(self, variant: Variant) -> Outcome:
        """Score a variant's output for all items; write its predictions."""
        if variant in self._scored:
            return self._scored[variant]
        entries = [self.journal.stored[key] for key in self._keys(variant)]
        kept: list[Any] = [None] * len(self.workload.items)
        for batch, entry in zip(self.batches, entries, strict=True):
            for index, item in zip(batch, entry["kept"], strict=True):
                kept[index] = item
        scored = self.workload.score(kept)
        for file, content in scored.files.items():
            write_json({file: content}, file_of(self.folder, file, str(variant)))
        units, measures = self.workload.units, scored.measures.items()
        self._scored[variant] = Outcome(
            values={name: float(x(np.arange(units)[None])[0]) for name, x in measures},
            samples={name: bootstrap(x, units, SAMPLES, seed=0) for name, x in measures},
            seconds=np.array([entry["seconds"] for entry in entries]),
            relative=np.array([entry["seconds"] / entry["full_s"] for entry in entries]),
        )
        return self._scored[variant]

    def _interval(self, values: Values, baseline: Values | None = None) -> Interval | None:
        """Return the interval of resampled values, or of their ratios; None for a single unit."""
        if self.workload.units < 2:
            return None
        return percentiles(values) if baseline is None else ratio_interval(values, baseline)


def _key(variant: Variant, what: str | int) -> str:
    """Return the key of a variant's batch in the journal; for another program, with its version."""
    is_peer = variant.attention.startswith(ENGINE)
    program = [engine_version(variant.attention.removeprefix(ENGINE))] if is_peer else []
    return " ".join([str(variant), *program, str(what)])


def _entry(value: float, interval: Interval | None) -> dict[str, Any]:
    return {"rate": value, "interval": interval and list(interval)}


def collect(request: Request, runs: Sequence[Exchange]) -> Results:
    """Return the results of all workloads; their forward passes have been stored."""
    options, label = request.options, label_of(request.options.model)
    clock = usual_clock(options.device)
    workload = runs[0].workload
    candidate = Candidate(label, FULL, layers=workload.layers, subsampling=0, source=options.model)
    sizes = {
        run.workload.name: {
            "timed": run.workload.timed,
            "inputs": len(run.workload.items),
            "positions": sum(item.length for item in run.workload.items),
        }
        for run in runs
    }
    environment = {key: x for key, x in describe_environment().items() if key != "command"}
    environment["device"] = options.device
    if options.peers:
        environment["peers"] = {name: engine_version(name) for name in options.peers}
    if task := {run.workload.name: run.workload.settings()["data"] for run in runs if not run.workload.data}:
        environment["data"] = task  # digests, as those of recordings are in `data`
    return Results(
        command=["asr", "compare", *request.command],
        recipe=request.recipe.name if request.recipe else "",
        protocol={
            "clock": clock,
            "baseline": options.baseline,
            "exchange": request.exchanged(),
            "sizes": sizes,
            "search": {run.workload.name: run.search for run in runs if run.search},
        },
        environment=environment,
        data={name: split for run in runs for name, split in run.workload.data.items()},
        candidates=[candidate],
        evaluations=[x for run in runs for x in run.evaluations(label, clock)],
        differences=[x for run in runs for x in run.differences(label)],
        failures=[
            Failure(f"{run.workload.name}: {variant}", label, None, error, "")
            for run in runs
            for variant, error in run.errors.items()
        ],
    )


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of a model's output: one, a sequence, or a mapping."""
    parts = output.values() if isinstance(output, dict) else output
    parts = parts if not isinstance(output, Tensor) else [output]
    return (part for part in parts if isinstance(part, Tensor))


def length_batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield the indices of each batch: sequences of similar length, at most `tokens` with their padding.

    Example:
        >>> list(length_batches([5, 2, 9, 3], 10))
        [[1, 3], [0], [2]]
    """
    # The same batches for every variant, so that times are compared batch by batch.
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        if batch and lengths[index] * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
