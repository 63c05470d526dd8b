"""`asr bench`: time and memory of attention mechanisms, transformer layers and models by length."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

from rich.console import Console

from asr import config
from asr.attention import own
from asr.attention.table import missing_kernels
from asr.config.names import alternatives
from asr.console import Table, open_console, progress
from asr.environment import pick_device, pick_precision
from asr.experiment.bench import Bench, measured_names
from asr.experiment.crossings import crossings, fastest_by_length, speed_ups
from asr.experiment.options import BenchOptions
from asr.experiment.records import Evaluation
from asr.experiment.results import Results
from asr.experiment.variant import Variant, given_variants, mechanism_of
from asr.files import check_writable, write_json
from asr.measure import quartiles
from asr.model.options import FeatureConfig, ModelConfig
from asr.records.run_folder import RunFolder
from asr.report.figure import export
from asr.report.figures import benchmark as bench_chart
from asr.report.words import look_ahead_text
from asr.scoring.statistics import DASH
from asr.training.config import run_options, train_options


def parse(overrides: list[str]) -> BenchOptions:
    """Build the options from the named figure's, if any, and from `key=value` overrides."""
    given = config.by_key(overrides)
    figure = given.get("figure")
    drawn = config.flat(config.group_values("figure", figure)) if figure else {}
    options = config.parse(BenchOptions, drawn | given)
    options.attentions = given_variants(options.attentions, _loaded)
    options.baseline = own.load(options.baseline)
    measured_names(options)  # refuses what can't be measured
    return options


def _loaded(names: list[str]) -> list[str]:
    """Return the mechanisms that names stand for, as written: `name@2` isn't the name of a mechanism."""
    return [own.load(name) for name in alternatives(names)]


def main(paths: list[str], overrides: list[str]) -> None:
    """Run the measurement that the overrides describe."""
    run(paths, parse(overrides))


def run(paths: Sequence[str | Path], options: BenchOptions, *, console: Console | None = None) -> Results:
    """Measure, print one table per pass, and write the results as JSON and as a plot.

    An interrupted benchmark continues: its measurements are kept beside the results until these are complete.

    Raises:
        UserError: an option out of range, an unknown name, or a missing device.
    """
    out = Path(options.out)
    for path in (out, *(out.with_suffix(suffix) for suffix in (".png", ".pdf"))):
        check_writable(path)
    device = pick_device(options.device)
    precision = pick_precision(options.precision, device)
    console = console or open_console()
    if options.precision == "auto":
        console.print(f"precision={precision.name}, because {precision.reason}")
    options = replace(options, device=device, precision=precision.name)
    # Mechanisms that the user asks to run without kernels say so in their names.
    plain = [x for x in measured_names(options) if not x.startswith("peer:") and "@reference" not in x]
    notice = missing_kernels(map(mechanism_of, plain), device)
    if notice:
        console.print(notice, style="yellow", markup=False, soft_wrap=True)
    preset = _preset(options) if options.unit == "model" else None
    bench = Bench(options, out, preset)
    if bench.reused:
        console.print(f"{out}: reusing {bench.reused} results of an interrupted benchmark")
    with progress() as bars:
        task = bars.add_task("measuring", total=bench.steps)
        bench.run(lambda what: bars.update(task, description=what, advance=1))
    for passes in options.passes:
        rows = [row for row in bench.rows if (row.passes, row.status) == (passes, "done")]
        if rows:
            console.print(_time_table(rows, options, bench.clock, preset))
        if any(row.peak_mib is not None for row in rows):
            console.print(_memory_table(rows, options.lengths))
    for row in bench.rows:
        if row.error:
            line = f"N={row.length}: memory of {row.variant}, {row.passes}: {row.error}"
            console.print(line, highlight=False)
    results = bench.results(notice)
    write_json(asdict(results), out)
    bench.forget()
    figure = bench_chart.figure(results)  # None if nothing fits into memory
    plots = export(replace(figure, key=out.stem), out.parent) if figure else []
    console.print(f"written: {', '.join(map(str, [out, *plots]))}")
    return results


def _preset(options: BenchOptions) -> ModelConfig:
    """Return the architecture of a preset, or of a run."""
    run = RunFolder(options.model)
    if run.options.exists():
        model = run_options(run).model
        return model if options.frames == "1" else replace(model, frames=options.frames)
    # Composed with all other options of a training, because presets are a group of its configuration.
    return train_options({"model": options.model, "model.frames": options.frames}).model


def _look_ahead(name: str, preset: ModelConfig | None) -> str:
    """Return the look-ahead: in ms for a model, in positions for a layer."""
    if name.startswith("peer:"):
        return DASH
    attention, variant = mechanism_of(name), Variant.read(name)
    if preset is None:
        return look_ahead_text(attention, 1, 1.0)
    position_ms = preset.subsampling * FeatureConfig().frame_shift_ms
    frames, layers = variant.frames or preset.frames, variant.layers or preset.layers
    return look_ahead_text(attention, layers, position_ms, frames)


def _time_table(
    rows: list[Evaluation], options: BenchOptions, clock: str, preset: ModelConfig | None
) -> Table:
    """Return times per position in µs; for models, per call in s, with the parts of a training step."""
    model, digits = (True, 3) if options.unit == "model" else (False, 2)
    columns = ("N", "attention", "batch", *rows[0].parts_s, "s" if model else "µs", "quartiles")
    columns += (f"speed-up over {options.baseline}", f"look-ahead, {'ms' if model else 'positions'}")
    title = f"{rows[0].passes}: {clock} time per {'call' if model else 'position'}"
    last = {number for number, (row, after) in enumerate(pairwise(rows)) if row.length != after.length}
    lines = []
    for row, ratio in zip(rows, speed_ups(rows, options.baseline, clock), strict=True):
        unit_s = 1.0 if model else 1e-6 * row.positions
        low, median, high = (f"{x / unit_s:.{digits}f}" for x in quartiles(row.repeats_s(clock)))
        seconds = (f"{part:.{digits}f}" for part in row.parts_s.values())
        faster = "" if ratio is None else f"{ratio:.2f}"
        shape = (str(row.length), row.variant, str(row.utterances))
        lines.append((*shape, *seconds, median, f"{low}–{high}", faster, _look_ahead(row.variant, preset)))
    found = crossings(rows, options.baseline, clock)
    notes = [f"{name}: {where}" for name, where in found.items()]
    notes += fastest_by_length(rows, options.baseline, clock) if model else []
    caption = "\n".join(notes)
    return replace(Table.of(title, columns, lines, caption=caption, numbers=False), sections=last)


def _memory_table(rows: list[Evaluation], lengths: list[int]) -> Table:
    """Return the peak memory per sequence of the batch."""
    each = {(x.length, x.variant): x.peak_mib / (x.utterances or 1) for x in rows if x.peak_mib is not None}
    names = list(dict.fromkeys(name for _, name in each))
    lines = [
        (str(length), *(f"{each[length, x]:.1f}" if (length, x) in each else DASH for x in names))
        for length in lengths
    ]
    title = f"{rows[0].passes}: peak memory per sequence, MiB"
    return Table.of(title, ("N", *names), lines, numbers=False)
