"""Time and memory of operations on random input, by length and pass."""

import math
from collections.abc import Iterator
from itertools import pairwise

from asr.console import Column, Table, TableCell
from asr.experiment.crossings import crossings, fastest_by_length, speed_ups
from asr.experiment.records import Evaluation
from asr.experiment.results import Results
from asr.experiment.variant import Variant, mechanism_of
from asr.measure import quartiles
from asr.model.options import FeatureConfig
from asr.report import theme
from asr.report.words import LOOK_AHEAD, clock_words, look_ahead_text, pass_words
from asr.scoring.statistics import BETWEEN, DASH


def tables(results: Results) -> Iterator[Table]:
    """Yield a table of times and one of peak memory for each pass, as far as they were measured."""
    for passes in dict.fromkeys(row.passes for row in results.evaluations if row.length):
        rows = [row for row in results.evaluations if row.passes == passes]
        if timed := [row for row in rows if row.status == "done"]:
            yield _times(results, timed)
        if any(row.peak_mib is not None or row.status == "failed" for row in rows):
            yield _memory(results, rows)


def _times(results: Results, rows: list[Evaluation]) -> Table:
    """Return times per position in µs; for models, per call in s, and for the parts of a training step."""
    options, clock = results.protocol["bench"], results.clock
    baseline, model = options["baseline"], options["unit"] == "model"
    digits, unit, each = (3, "s", "call") if model else (2, "µs", "position")
    lines = []
    for row, ratio in zip(rows, speed_ups(rows, baseline, clock), strict=True):
        unit_s = 1.0 if model else 1e-6 * row.positions
        low, median, high = (_decimal(x / unit_s, digits) for x in quartiles(row.repeats_s(clock)))
        seconds = [_decimal(part, digits) for part in row.parts_s.values()]
        numbers = [str(row.utterances), *seconds, median, f"{low}{BETWEEN}{high}"]
        numbers.append("" if ratio is None else f"{ratio:.2f}")
        name = TableCell(row.variant, sort=row.variant, family=theme.family(row.variant))
        lines.append([_number(str(row.length)), name, *map(_number, numbers), _look_ahead(results, row)])
    notes = [f"{name}: {where}" for name, where in crossings(rows, baseline, clock).items()]
    notes += fastest_by_length(rows, baseline, clock) if model else []
    parts = [part if model else f"{part}, s" for part in rows[0].parts_s]
    names = ("batch", *parts, unit, "quartiles", f"speed-up over {baseline}")
    return Table(
        key=f"times-{rows[0].passes}",
        label="Times",
        title=f"{pass_words(results, rows[0].passes)}: {clock_words(clock)} per {each}",
        caption="\n".join(notes),
        columns=[
            Column("N", "sequence length"),
            Column("attention", number=False, wrap=False),
            *map(Column, names),
            Column(f"look-ahead, {'ms' if model else 'positions'}", LOOK_AHEAD),
        ],
        rows=lines,
        sections={number for number, (row, after) in enumerate(pairwise(rows)) if row.length != after.length},
    )


def _decimal(value: float, digits: int) -> str:
    """Return a number with so many decimals, or more if it needs them for three significant digits.

    Example:
        >>> _decimal(1.23456, 3), _decimal(0.00123456, 3)
        ('1.235', '0.00123')
    """
    if value > 0:
        digits = max(digits, 2 - math.floor(math.log10(value)))
    return f"{value:.{digits}f}"


def _number(text: str) -> TableCell:
    start = text.partition(BETWEEN)[0]
    return TableCell(text, sort=float(start) if start else None)


def _look_ahead(results: Results, row: Evaluation) -> TableCell:
    """Return the look-ahead of attention: in ms for a model, otherwise in positions for one layer."""
    if row.variant.startswith("peer:"):
        return TableCell(DASH)
    attention, variant = mechanism_of(row.variant), Variant.read(row.variant)
    (model,), options = results.candidates, results.protocol["bench"]
    position_ms = model.subsampling * FeatureConfig().frame_shift_ms if options["unit"] == "model" else 1.0
    frames = variant.frames or options["frames"]
    return TableCell(look_ahead_text(attention, variant.layers or model.layers, position_ms, frames))


def _memory(results: Results, rows: list[Evaluation]) -> Table:
    """Return the peak memory per sequence; a lower bound where even one sequence doesn't fit."""
    limit_mib = 1024 * results.protocol["bench"]["memory"]
    cells = {}
    for row in rows:
        if row.peak_mib is not None or row.status == "failed":
            each = limit_mib if row.peak_mib is None else row.peak_mib / (row.utterances or 1)
            cells[row.length, row.variant] = TableCell(f"{'> ' if row.error else ''}{each:.1f}", sort=each)
    names, lengths = dict.fromkeys(x for _, x in cells), dict.fromkeys(length for length, _ in cells)
    return Table(
        key=f"memory-{rows[0].passes}",
        label="Memory",
        title=f"{pass_words(results, rows[0].passes)}: peak memory per sequence, MiB",
        columns=[Column("N", "sequence length"), *map(Column, names)],
        rows=[
            [_number(str(length)), *(cells.get((length, x), TableCell(DASH)) for x in names)]
            for length in lengths
        ],
    )
