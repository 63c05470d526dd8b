"""Main results of every system: error rates and forward time on each split."""

from dataclasses import replace

from asr.console import Column, Table, TableCell
from asr.experiment.results import Results, System
from asr.report import theme
from asr.report.tables.cells import filled, model_cell, rate_cell, time_cells, tone
from asr.report.words import (
    LOOK_AHEAD,
    candidate_look_ahead,
    clock_words,
    counterpart,
    metric_heading,
    split_heading,
)
from asr.scoring.statistics import DASH, Estimate


def table(results: Results) -> Table | None:
    """Return a row per system; None before a training has ended or a model has been evaluated."""
    competing = any(results.systems(split) for split in results.splits())
    exchanged = not competing and any(x.status == "done" for x in results.evaluations)
    running = not competing and all(x.status == "running" for x in results.trainings)
    if not results.trainings or exchanged or running:
        return None
    systems = {results.name_of(system): system for system in _systems(results)}
    columns = [Column("model", number=False)]
    rows = [[_head(results, name, system)] for name, system in systems.items()]

    def add(column: Column, cells: list[TableCell]) -> None:
        columns.append(column)
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)

    for split in results.splits():
        for metric in _metrics(results, split):
            rates = [results.error_rate(x, split, metric, variant) for x, variant in systems.values()]
            add(Column(split_heading(results, metric, split)), _rate_cells(results, systems, rates, metric))
        add(_time_column(results, split), _times(results, systems, split))
    if not results.splits():
        measure = results.dev_measure()
        errors = [results.dev_error(label) for label, _ in systems.values()]
        heading = Column(f"dev {metric_heading(measure)}", "at the best checkpoint")
        add(heading, _rate_cells(results, systems, errors, measure))
    ahead = [candidate_look_ahead(results, results.candidate(x), variant) for x, variant in systems.values()]
    add(Column("look-ahead, ms", LOOK_AHEAD), [TableCell(x) for x in ahead])
    add(Column("seeds", "finished trainings"), [_seeds(results, label) for label, _ in systems.values()])
    return filled(
        Table(
            key="outcome",
            label="Outcome",
            title="What each model reaches",
            caption=(
                f"Error rates with 95 % intervals: over seeds, or over {results.unit} for a single seed. "
                + (_times_caption(results) if results.splits() else "")
                + counterpart("Tables 2 and 3")
            ),
            columns=columns,
            rows=rows,
        )
    )


def _times_caption(results: Results) -> str:
    return (
        f"Forward: {clock_words(results.clock)} of encoder and head over the split, median with the range "
        "of its repeats. Level: the range overlaps with that of the lowest median, so there is no winner. "
        "Front: no other model is both faster and more accurate. "
    )


def _systems(results: Results) -> list[System]:
    """Return the candidates as they were trained, finished or not, each followed by its variants."""
    competing = [x for split in results.splits() for x in results.systems(split).values()]
    return [
        system
        for candidate in results.candidates
        for system in dict.fromkeys(
            [(candidate.label, candidate.attention), *(x for x in competing if x[0] == candidate.label)]
        )
    ]


def _metrics(results: Results, split: str) -> list[str]:
    metrics = results.metrics(split)
    # Beside a word error rate, the character error rate adds little.
    return [x for x in metrics if x != "cer" or "wer" not in metrics or x == metrics[0]]


def _head(results: Results, name: str, system: System) -> TableCell:
    label, variant = system
    if variant == results.own(label):
        return model_cell(results.candidate(label))
    return TableCell(name, sort=name, family=theme.family(variant), note=variant)


def _rate_cells(
    results: Results, systems: dict[str, System], rates: list[Estimate | None], metric: str
) -> list[TableCell]:
    known = [rate.value for rate in rates if rate]
    return [
        rate_cell(rate, metric, tone(rate.value, known)) if rate else _gap(results, label)
        for (label, _), rate in zip(systems.values(), rates, strict=True)
    ]


def _gap(results: Results, label: str) -> TableCell:
    reason = "failed" if any(x.candidate == label for x in results.failures) else "not finished"
    return TableCell(DASH, note=reason, detail=reason)


def _seeds(results: Results, label: str) -> TableCell:
    done, asked = len(results.trainings_of(label)), len(results.candidate(label).seeds)
    return TableCell(str(done) if done == asked else f"{done}/{asked}", sort=done, note=f"of {asked}")


def _time_column(results: Results, split: str) -> Column:
    return Column(f"forward, {split}", f"{clock_words(results.clock)} of encoder and head")


def _times(results: Results, systems: dict[str, System], split: str) -> list[TableCell]:
    """Return the times of forward passes with range and speed, and marks for the Pareto front."""
    times = {name: results.forward_time(label, split, variant) for name, (label, variant) in systems.items()}
    front, cells = results.front(split), []
    for (name, (label, variant)), cell in zip(systems.items(), time_cells(times), strict=True):
        audio_s = next((x.audio_s for x in results.evaluations_of(label, split, variant)), None)
        time = times[name]
        speed = f"{audio_s / time.value:.0f} × real time" if audio_s and time else ""
        details = [cell.detail, "front" if name in front and len(systems) > 1 else "", speed]
        cells.append(replace(cell, detail=", ".join(filter(None, details))))
    return cells
