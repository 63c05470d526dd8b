"""Figure 4: time and memory of attention per position, measured by `asr bench`."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import altair as alt

from asr.benchmark.mechanisms import Setup, Timing
from asr.errors import UserError
from asr.files import build, read_json
from asr.report import theme
from asr.report.axes import log_axis, log_ticks
from asr.report.figure import Figure, Panel, Series, line_channels, lines_of, spec_of
from asr.report.provenance import of_environment

PASSES = {"forward": "forward", "forward+backward": "forward and backward"}


@dataclass(frozen=True)
class Record:
    """The content of a `bench.json`; memory in bytes by pass, mechanism and length."""

    options: dict[str, Any]
    environment: dict[str, Any]
    timings: list[Timing]
    memory_bytes: dict[str, dict[str, dict[int, int]]]

    @property
    def setup(self) -> Setup:
        """Return the options that the figure names."""
        names = {entry.name for entry in fields(Setup)} & self.options.keys()
        setup: Setup = build(Setup, {name: self.options[name] for name in names}, "options")
        return setup


def read_record(path: Path) -> Record:
    """Read a `bench.json`; raise a `UserError` if it is missing or has another format."""
    what = "results of asr bench"
    record: Record = build(Record, read_json(path, what), f"{path}: expected {what}")
    try:
        lengths = [timing.length for timing in record.timings]
        lengths += [n for sizes in record.memory_bytes.values() for own in sizes.values() for n in own]
        if min([record.setup.batch, *lengths]) < 1:
            raise UserError("expected batch and lengths of at least 1")
        if {timing.passes for timing in record.timings} != set(PASSES):
            raise UserError(f"expected timings of {' and '.join(PASSES)}")
        for timing in record.timings:
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
    record = read_record(path)
    options = record.setup
    timings, memory = time_rows(record), memory_rows(record)
    provenance = of_environment(record.environment, seeds=str(options.seed), data="random")
    shape = f"batch {options.batch}, {options.heads} heads of {options.head_dim}"
    where = f"{options.dtype} on {options.device}"
    names = theme.in_family_order(list({row["series"]: None for row in timings}))
    lines = lines_of(dict(zip(names, names, strict=True)))
    panels = [
        Panel("", _spec(chosen, lines, f"{PASSES[passes]}, {unit} per position"))
        for rows, unit in ((timings, "µs"), (memory, "KiB"))
        for passes in PASSES
        if (chosen := [row for row in rows if row["passes"] == passes])
    ]
    return Figure(
        key="figure-4",
        label="Figure 4",
        title="Time and memory of attention per position",
        caption=(
            f"Attention without projections on random input ({shape}, {where}): medians with quartiles over "
            "rounds that are interleaved over all mechanisms. A flat line means cost linear in the sequence "
            "length."
        ),
        panels=panels,
        series=lines,
        log=("x", "y"),
        log_at_first=("x", "y"),
        provenance=provenance,
    )


def time_rows(record: Record) -> list[dict[str, Any]]:
    """Return a row per mechanism, length and pass, in microseconds per position."""
    rows = []
    for timing in record.timings:
        positions = record.setup.batch * timing.length
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


def memory_rows(record: Record) -> list[dict[str, Any]]:
    """Return a row per mechanism, length and pass, in KiB of peak memory per position."""
    return [
        {
            "series": name,
            "length": length,
            "passes": passes,
            "value": size / 1024 / (record.setup.batch * length),
            "low": None,
            "high": None,
        }
        for passes, of_names in record.memory_bytes.items()
        for name, sizes in of_names.items()
        for length, size in sizes.items()
        if size > 0
    ]


def _spec(rows: list[dict[str, Any]], lines: list[Series], title: str) -> dict[str, Any]:
    color, dashes = line_channels(lines)
    log = alt.Scale(type="log", nice=False, padding=12)
    lengths = sorted({row["length"] for row in rows})
    values = [row[name] for row in rows for name in ("value", "low", "high") if row[name] is not None]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("length:Q", title="sequence length N", scale=log, axis=log_axis(lengths, ",d")),
        color=color,
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
