"""Time and memory of attention, or of whole layers, per position, measured by `asr bench`."""

import math
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import altair as alt

from asr.benchmark.crossings import crossings
from asr.benchmark.mechanisms import Timing
from asr.benchmark.memory import Memory
from asr.benchmark.problem import Setup
from asr.errors import UserError
from asr.files import build, read_json
from asr.report import theme
from asr.report.axes import log_axis, log_ticks
from asr.report.figure import Figure, Panel, Series, line_channels, lines_of, spec_of
from asr.report.provenance import of_environment

PASSES = {"forward": "forward", "forward+backward": "forward and backward", "grouping": "grouping"}
MODEL_PASSES = {"forward": "encoding", "forward+backward": "training step"}
UNITS = {"mechanism": "attention", "layer": "a transformer layer", "model": "a model"}


@dataclass(frozen=True)
class BenchResults:
    """The content of a `bench.json`."""

    options: dict[str, Any]
    environment: dict[str, Any]
    timings: list[Timing]
    memory: list[Memory]
    kernels: str = ""  # which mechanisms ran without compiled kernels, and why

    @property
    def setup(self) -> Setup:
        """Return the options that the figure names."""
        names = {entry.name for entry in fields(Setup)} & self.options.keys()
        setup: Setup = build(Setup, {name: self.options[name] for name in names}, "options")
        # Results older than the option `unit` have `layer` instead.
        return replace(setup, unit="layer") if self.options.get("layer") is True else setup

    def pass_name(self, passes: str) -> str:
        """Return a pass in words."""
        return {**PASSES, **(MODEL_PASSES if self.setup.unit == "model" else {})}[passes]


def read_bench(path: Path) -> BenchResults:
    """Read a `bench.json`; raise a `UserError` if it is missing or has another format."""
    what = "results of asr bench"
    record: BenchResults = build(BenchResults, read_json(path, what), f"{path}: expected {what}")
    try:
        cells: list[Timing | Memory] = [*record.timings, *record.memory]
        if min((min(cell.length, cell.batch) for cell in cells), default=1) < 1:
            raise UserError("expected batches and lengths of at least 1")
        if not record.timings or not {cell.passes for cell in cells} <= PASSES.keys():
            raise UserError(f"expected timings of {' or '.join(PASSES)}")
        if record.setup.unit not in UNITS:
            raise UserError(f"unit={record.setup.unit}: expected {' or '.join(UNITS)}")
        for timing in record.timings:
            # The axis is logarithmic.
            if not 0 < timing.per_element_us < math.inf:
                raise UserError(f"{timing.name}: expected a positive time, found {timing.per_element_us}")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return record


def figure(path: Path) -> Figure:
    """Return the figure for a `bench.json`.

    Raises:
        UserError: the file is missing or has another format.
    """
    record = read_bench(path)
    setup, options = record.setup, record.options
    timings, memory = time_rows(record), memory_rows(record)
    provenance = of_environment(record.environment, seeds=str(setup.seed), data="random")
    names = theme.in_family_order(list({row["series"]: None for row in timings}))
    lines = lines_of(dict(zip(names, names, strict=True)))
    panels = [
        Panel("", _spec(chosen, lines, f"{record.pass_name(passes)}, {unit} per position"))
        for rows, unit in ((timings, "µs"), (memory, "KiB"))
        for passes in PASSES
        if (chosen := [row for row in rows if row["passes"] == passes])
    ]
    faster = [
        f"{name} is {where} ({record.pass_name(passes)})"
        for passes in PASSES
        if setup.unit != "mechanism"
        for name, where in crossings(
            [timing for timing in record.timings if timing.passes == passes], str(options.get("baseline"))
        ).items()
    ]
    return Figure(
        key="figure-4" if path.stem == "bench" else f"figure-{re.sub(r'[^A-Za-z0-9-]', '-', path.stem)}",
        label={"layer": "Layers", "model": "Models"}.get(setup.unit, "Figure 4"),
        title=f"Time and memory of {UNITS[setup.unit]} per position",
        caption=(
            f"{_subject(record)} on random input ({_sizes(record)}, {setup.precision} on {setup.device}): "
            "medians with quartiles over rounds that are interleaved over all mechanisms. A flat line means "
            "cost linear in the sequence length."
            + "".join(f" {sentence}." for sentence in [*faster, record.kernels] if sentence)
        ),
        panels=panels,
        series=lines,
        log=("x", "y"),
        log_at_first=("x", "y"),
        provenance=provenance,
    )


def _subject(record: BenchResults) -> str:
    """Return what was measured."""
    setup = record.setup
    if setup.unit == "model":
        return f"The model of the preset {record.options.get('model')}"
    if setup.unit == "mechanism":
        return "Attention without projections"
    if setup.feedforward:
        return f"A transformer layer with feed-forward size {setup.feedforward:,}"
    return "A self-attention layer with projections"


def _sizes(record: BenchResults) -> str:
    """Return the batch and, except of a model, the heads in words."""
    batches = {timing.batch for timing in record.timings}
    batch = f"batch {', '.join(map(str, sorted(batches)))}"
    if record.options.get("batch") == "max":
        limit = f"the largest batch that fits into {record.options.get('memory')} GiB"
        batch = f"{limit}, {min(batches)} to {max(batches)}"
    heads = f"{record.setup.heads} heads of {record.setup.head_dim}"
    return batch if record.setup.unit == "model" else f"{batch}, {heads}"


def time_rows(record: BenchResults) -> list[dict[str, Any]]:
    """Return a row per mechanism, length and pass, in microseconds per position."""
    rows = []
    for timing in record.timings:
        positions = timing.batch * timing.length
        low, high = (1e6 * bound / positions for bound in timing.quartiles_s)
        rows.append(
            {
                "series": timing.name,
                "length": timing.length,
                "passes": timing.passes,
                "value": timing.per_element_us,
                "low": low,
                "high": high,
            }
        )
    return rows


def memory_rows(record: BenchResults) -> list[dict[str, Any]]:
    """Return a row per mechanism, length and pass, in KiB of peak memory per position."""
    return [
        {
            "series": size.name,
            "length": size.length,
            "passes": size.passes,
            "value": size.peak_bytes / 1024 / (size.batch * size.length),
            "low": None,
            "high": None,
        }
        for size in record.memory
        if size.peak_bytes > 0
    ]


def _spec(rows: list[dict[str, Any]], lines: list[Series], title: str) -> dict[str, Any]:
    color, dashes = line_channels(lines)
    log = alt.Scale(type="log", nice=False, padding=12)
    lengths = sorted({row["length"] for row in rows})
    values = [row[name] for row in rows for name in ("value", "low", "high") if row[name] is not None]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("length:Q", title="sequence length N", scale=log, axis=log_axis(lengths, ",d")), color=color
    )
    y = alt.Y("value:Q", title=title, scale=log, axis=log_axis(log_ticks(values)))
    tooltip = [
        alt.Tooltip("series:N", title="mechanism"),
        alt.Tooltip("length:Q"),
        alt.Tooltip("value:Q", title=title, format=".4g"),
    ]
    drawn = base.mark_line(strokeWidth=1.8).encode(y=y, strokeDash=dashes)
    points = base.mark_point(size=45, filled=True, opacity=1).encode(y=y, tooltip=tooltip)
    quartiles = (
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.5, opacity=0.6)
        .encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    )
    return spec_of(alt.layer(quartiles, drawn, points))
