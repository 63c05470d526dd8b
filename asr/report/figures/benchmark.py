"""Time and memory per position of attention, layers or models, measured by `asr bench`."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt

from asr.console import counted
from asr.errors import UserError
from asr.experiment.crossings import crossings, position_us
from asr.experiment.records import Evaluation
from asr.experiment.results import Results, read_results
from asr.measure import quartiles
from asr.report import theme
from asr.report.axes import log_axis, log_ticks
from asr.report.drawing import Item, Place, usable
from asr.report.figure import Figure, Panel, Series, line_chart, lines_of
from asr.report.provenance import of_results
from asr.report.words import pass_words

UNITS = {"mechanism": "attention", "layer": "a transformer layer", "model": "a model"}


def read_bench(path: Path) -> Results:
    """Read results of `asr bench`; raise a `UserError` if they are missing or have another format."""
    results = read_results(path)
    if "bench" not in results.protocol or not timed_rows(results):
        raise UserError(f"{path}: expected results of asr bench, with times")
    return results


def beside(results: Results, place: Place) -> Iterator[Item]:
    """Yield figures of benchmarks that lie near results of another kind."""
    if place.folder and "bench" not in results.protocol:
        yield from usable(_of_file, benchmarks_beside(place.folder))


def _of_file(path: Path) -> list[Figure]:
    results = read_bench(path)
    drawn = figure(results, path.stem)
    return [replace(drawn, provenance=of_results(results))] if drawn else []


def benchmarks_beside(folder: Path) -> list[Path]:
    """Find benchmarks in a folder, its parent or grandparent: `exp/bench*.json` for `exp/compare/x`."""
    places = (sorted(place.glob("bench*.json")) for place in (folder, *folder.resolve().parents[:2]))
    return next(filter(None, places), [])


def timed_rows(results: Results) -> list[Evaluation]:
    """Return the rows of operations on random input.

    Raises:
        UserError: a time isn't positive, so a logarithmic axis can't show it.
    """
    rows = [row for row in results.evaluations if row.length and row.status == "done"]
    for row in rows:
        seconds = row.seconds(results.clock)
        if seconds is None or not 0 < seconds < math.inf:
            raise UserError(f"{row.variant}: expected a positive time, found {seconds}")
    return rows


def figure(results: Results, key: str = "bench") -> Figure | None:
    """Return the figure of operations on random input; None for results of another kind.

    Args:
        results: results of `asr bench`.
        key: key of the figure, which distinguishes several on a page.
    """
    rows = timed_rows(results)
    if not rows:
        return None
    options = results.protocol["bench"]
    words = {x: pass_words(results, x) for x in dict.fromkeys(row.passes for row in rows)}
    names = theme.in_family_order(list(dict.fromkeys(row.variant for row in rows)))
    lines = lines_of(dict(zip(names, names, strict=True)))
    panels = [
        Panel("", _spec(chosen, lines, f"{words[passes]}, {unit} per position"))
        for drawn, unit in ((time_rows(results), "µs"), (memory_rows(results), "KiB"))
        for passes in words
        if (chosen := [row for row in drawn if row["passes"] == passes])
    ]
    faster = [
        f"{name} is {where} ({words[passes]})"
        for passes in words
        if options["unit"] != "mechanism"
        for name, where in crossings(
            [row for row in rows if row.passes == passes], options["baseline"], results.clock
        ).items()
    ]
    return Figure(
        key=f"figure-{re.sub(r'[^A-Za-z0-9-]', '-', key)}",
        label="Benchmark",
        title=f"Time and memory of {UNITS[options['unit']]} per position",
        caption=(
            f"{_subject(options)} on random input ({_sizes(options, rows)}, {options['precision']} on "
            f"{options['device']}): medians and quartiles over rounds, in each of which all mechanisms "
            "take turns. A flat line means cost linear in the sequence length."
            + "".join(f" {sentence}." for sentence in [*faster, results.protocol["kernels"]] if sentence)
        ),
        panels=panels,
        series=lines,
        log=("x", "y"),
        log_at_first=("x", "y"),
    )


def _subject(options: dict[str, Any]) -> str:
    """Return the name of what was measured."""
    if options["unit"] == "model":
        frames = options.get("frames", "1")
        return f"The model of the preset {options['model']}" + (f" frames={frames}" if frames != "1" else "")
    if options["unit"] == "mechanism":
        return "Attention without projections"
    if options["feedforward"]:
        return f"A transformer layer with feed-forward size {options['feedforward']:,}"
    return "A self-attention layer with projections"


def _sizes(options: dict[str, Any], rows: list[Evaluation]) -> str:
    """Return the batch in words, and the heads unless a model was measured."""
    batches = {row.utterances or 1 for row in rows}
    batch = f"batch {', '.join(map(str, sorted(batches)))}"
    if options["batch"] == "max":
        limit = f"the largest batch that fits into {options['memory']} GiB"
        batch = f"{limit}, {min(batches)} to {max(batches)}"
    heads = f"{counted(options['heads'], 'head')} of {options['head_dim']}"
    return batch if options["unit"] == "model" else f"{batch}, {heads}"


def time_rows(results: Results) -> list[dict[str, Any]]:
    """Return a row per mechanism, length and pass, in microseconds per position."""
    drawn = []
    for row in timed_rows(results):
        low, _, high = (1e6 * x / row.positions for x in quartiles(row.repeats_s(results.clock)))
        drawn.append(_point(row, position_us(row, results.clock), low, high))
    return drawn


def memory_rows(results: Results) -> list[dict[str, Any]]:
    """Return a row per mechanism, length and pass, in KiB of peak memory per position."""
    return [_point(row, 1024 * row.peak_mib / row.positions) for row in timed_rows(results) if row.peak_mib]


def _point(
    row: Evaluation, value: float, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    x = {"series": row.variant, "length": row.length, "passes": row.passes}
    return {**x, "value": value, "low": low, "high": high}


def _spec(rows: list[dict[str, Any]], lines: list[Series], title: str) -> dict[str, Any]:
    log = alt.Scale(type="log", nice=False, padding=12)
    lengths = sorted({row["length"] for row in rows})
    values = [row[name] for row in rows for name in ("value", "low", "high") if row[name] is not None]
    x = alt.X("length:Q", title="sequence length N", scale=log, axis=log_axis(lengths, ",d"))
    y = alt.Y("value:Q", title=title, scale=log, axis=log_axis(log_ticks(values)))
    return line_chart(rows, lines, x, y, ["length:Q", alt.Tooltip("value:Q", title=title, format=".4g")])
