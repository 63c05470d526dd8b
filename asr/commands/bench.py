"""`asr bench`: time and memory of attention mechanisms, transformer layers and models by length."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from asr import config
from asr.attention import own
from asr.attention.table import missing_kernels
from asr.benchmark.crossings import crossings
from asr.benchmark.measurement import Measurement
from asr.benchmark.mechanisms import Timing
from asr.benchmark.memory import Memory
from asr.benchmark.names import measured_names
from asr.benchmark.options import Options
from asr.config.names import alternatives
from asr.console import Table, open_console, progress
from asr.environment import describe_environment, pick_device, pick_precision
from asr.files import check_writable, write_json
from asr.model.options import FeatureConfig, ModelConfig
from asr.report import bench_chart
from asr.report.figure import export
from asr.report.words import look_ahead_text
from asr.scoring.estimates import DASH
from asr.training.config import train_options


def parse(overrides: list[str]) -> Options:
    """Build the options from those of a figure, if one is named, and from `key=value` overrides."""
    given = config.by_key(overrides)
    figure = given.get("figure")
    drawn = config.flat(config.group_values("figure", figure)) if figure else {}
    options = config.parse(Options, drawn | given)
    options.attentions = [own.load(name) for name in alternatives(options.attentions)]
    options.baseline = own.load(options.baseline)
    measured_names(options)  # refuses what can't be measured
    return options


def main(paths: list[str], overrides: list[str]) -> None:
    """Run the measurement that the overrides describe."""
    run(paths, parse(overrides))


def run(paths: Sequence[str | Path], options: Options, *, console: Console | None = None) -> list[Timing]:
    """Measure, print one table per pass, and write the results as JSON and as a plot.

    An interrupted benchmark continues: what it has measured lies beside the results until they are complete.

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
    # Those that the user runs without kernels say so in their names.
    plain = [x for x in measured_names(options) if not x.startswith("peer:") and "@reference" not in x]
    notice = missing_kernels((x.partition("@")[0] for x in plain), device)
    if notice:
        console.print(notice, style="yellow", markup=False, soft_wrap=True)
    # Composed with all other options of a training, because presets are a group of its configuration.
    model = {"model": options.model, "model.frames": options.frames}
    preset = train_options(model).model if options.unit == "model" else None
    measurement = Measurement(options, out, preset)
    if measurement.reused:
        console.print(f"{out}: reusing {measurement.reused} results of an interrupted benchmark")
    with progress() as bars:
        task = bars.add_task("measuring", total=measurement.steps)
        measurement.run(lambda what: bars.update(task, description=what, advance=1))
    timings, memory = measurement.timings, measurement.memory
    for passes in options.passes:
        if chosen := [timing for timing in timings if timing.passes == passes]:
            console.print(_time_table(chosen, options, preset))
        if sizes := [size for size in memory if size.passes == passes]:
            console.print(_memory_table(sizes, options))
    for line in measurement.too_large:
        console.print(line, highlight=False)
    record = {
        "options": asdict(options),
        "environment": describe_environment(),
        "kernels": notice,
        "timings": [asdict(timing) for timing in timings],
        "memory": [asdict(size) for size in memory],
    }
    write_json(record, out)
    measurement.forget()
    plots = export(replace(bench_chart.figure(out), key=out.stem), out.parent)
    console.print(f"written: {out}, {', '.join(map(str, plots))}")
    return timings


def _look_ahead(name: str, preset: ModelConfig | None) -> str:
    """Return by how much attention looks ahead: a model's in ms, otherwise a layer's in positions."""
    if name.startswith("peer:"):
        return DASH
    attention = name.partition("@")[0]
    if preset is None:
        return look_ahead_text(attention, 1, 1.0)
    position_ms = preset.subsampling * FeatureConfig().frame_shift_ms
    return look_ahead_text(attention, preset.layers, position_ms, preset.frames)


def _time_table(timings: list[Timing], options: Options, preset: ModelConfig | None) -> Table:
    """Return times per position in µs; for models, per call in s, with the parts of a training step."""
    model = options.unit == "model"
    parts = tuple(timings[0].parts_s)
    columns = ("N", "attention", "batch", *parts, "s" if model else "µs", "quartiles")
    columns += (f"speed-up over {options.baseline}", f"look-ahead, {'ms' if model else 'positions'}")
    title = f"{timings[0].passes}: {timings[0].clock} time per {'call' if model else 'position'}"
    pairs = enumerate(itertools.pairwise(timings))
    last = {number for number, (timing, after) in pairs if timing.length != after.length}
    rows, digits = [], 3 if model else 2
    for timing in timings:
        unit_s = 1.0 if model else 1e-6 * timing.batch * timing.length
        low, high = (f"{bound / unit_s:.{digits}f}" for bound in timing.quartiles_s)
        median = f"{timing.median_s / unit_s:.{digits}f}"
        ratio = "" if timing.ratio is None else f"{timing.ratio:.2f}"
        shape = (str(timing.length), timing.name, str(timing.batch))
        seconds = (f"{part:.{digits}f}" for part in timing.parts_s.values())
        rows.append((*shape, *seconds, median, f"{low}–{high}", ratio, _look_ahead(timing.name, preset)))
    faster = crossings(timings, options.baseline)
    caption = "\n".join(f"{name}: {where}" for name, where in faster.items())
    return replace(Table.of(title, columns, rows, caption=caption, numbers=False), sections=last)


def _memory_table(memory: list[Memory], options: Options) -> Table:
    """Return the peak memory per sequence of the batch."""
    names = list(dict.fromkeys(size.name for size in memory))
    by_cell = {(size.length, size.name): size for size in memory}
    rows = []
    for length in options.lengths:
        cells = [by_cell.get((length, name)) for name in names]
        shown = ["–" if size is None else f"{size.peak_bytes / size.batch / 2**20:.1f}" for size in cells]
        rows.append((str(length), *shown))
    title = f"{memory[0].passes}: peak memory per sequence, MiB"
    return Table.of(title, ("N", *names), rows, numbers=False)
