"""Cells of the tables: models, measures with their intervals, times with their ranges."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from asr.console import Table, TableCell, duration
from asr.experiment.records import Candidate
from asr.report import theme
from asr.report.words import changed, duration_range, measured
from asr.scoring.statistics import DASH, Estimate, fastest


def model_cell(candidate: Candidate) -> TableCell:
    """Return the head of a model's row."""
    label, attention, source = candidate.label, candidate.attention, candidate.finetuned_from
    detail = f"finetuned from {source}" if source else ""
    return TableCell(label, sort=label, family=theme.family(attention), note=attention, detail=detail)


def rate_cell(estimate: Estimate, metric: str, strength: float, own: bool = False) -> TableCell:
    """Return a measure with its interval, coloured by `tone`."""
    shown, _, interval = measured(estimate, metric).partition(" ")
    seeds = f"{estimate.count} seeds" if estimate.count > 1 else "one seed"
    note = f"95 % interval over {estimate.over}, {seeds}" if interval else seeds
    return TableCell(
        shown, sort=estimate.value, tone=strength, note=note, own=own, detail=interval.strip("()")
    )


def difference_cell(difference: Estimate, metric: str, note: str = "") -> TableCell:
    """Return a paired difference with its interval below it."""
    shown, _, interval = changed(difference, metric).partition(" ")
    return TableCell(shown, sort=difference.value, detail=interval.strip("()"), note=note)


def time_cells(times: Mapping[str, Estimate | None]) -> list[TableCell]:
    """Return a column of times with their ranges; mark the fastest, or all that are level with it.

    If any was measured only once, so that its spread is unknown, none is marked.
    """
    known = {label: time for label, time in times.items() if time}
    # A model must not be called the fastest for a lead smaller than the spread of repeats.
    leaders = fastest(known) if known and all(time.count > 1 for time in known.values()) else []
    mark = "level" if len(leaders) > 1 else "fastest" if len(known) > 1 else ""
    cells = []
    for label, time in times.items():
        if time is None:
            cells.append(TableCell(DASH))
            continue
        parts = [duration_range(time), mark if label in leaders else ""]
        cells.append(TableCell(duration(time.value), sort=time.value, detail=", ".join(filter(None, parts))))
    return cells


def tone(rate: float, rates: Sequence[float]) -> float:
    """Return how strongly to colour a rate: 1 for the lowest, falling to 0 at twice the lowest."""
    lowest = min(rates)
    if lowest <= 0:
        return 1.0 if rate <= 0 else 0.0
    return max(0.0, min(1.0, 2.0 - rate / lowest))


def filled(table: Table) -> Table:
    """Return a table without its empty columns."""
    kept = [
        i
        for i in range(len(table.columns))
        if i == 0 or any(x[i].text != DASH or x[i].detail for x in table.rows)
    ]
    columns, rows = [table.columns[i] for i in kept], [[row[i] for i in kept] for row in table.rows]
    return replace(table, columns=columns, rows=rows)
