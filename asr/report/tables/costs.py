"""Cost of training for each model: time per epoch and to convergence, memory, steps."""

from collections.abc import Callable

from asr.console import Column, Table, TableCell
from asr.experiment.records import Training
from asr.experiment.results import Results
from asr.report.tables.cells import filled, model_cell, time_cells
from asr.report.words import clock_words, count, counterpart, mebibytes
from asr.scoring.statistics import DASH, spread


def table(results: Results) -> Table | None:
    """Return a row per candidate; None before a training has finished."""
    trainings = {x.label: results.trainings_of(x.label) for x in results.candidates}
    if not any(trainings.values()):
        return None
    clock = results.clock
    what = clock_words(clock)

    def times(measure: Callable[[Training], float | None]) -> list[TableCell]:
        return time_cells({x: spread(map(measure, runs), "seeds") for x, runs in trainings.items()})

    def sizes(name: str, form: Callable[[float], str]) -> list[TableCell]:
        spreads = [spread([getattr(x, name) for x in runs], "seeds") for runs in trainings.values()]
        return [TableCell(form(x.value), sort=x.value) if x else TableCell(DASH) for x in spreads]

    skipped = [sum(x.skipped_batches or 0 for x in group) for group in trainings.values()]
    backends = [", ".join(dict.fromkeys(x.backend for x in runs if x.backend)) for runs in trainings.values()]
    columns: dict[Column, list[TableCell]] = {
        Column("model", number=False): [model_cell(x) for x in results.candidates],
        Column("per epoch", f"{what} of training per pass over the data"): times(lambda x: x.epoch_s(clock)),
        Column("to convergence", f"{what} of training to the best dev error rate"): times(
            lambda x: x.best_s(clock)
        ),
        Column("epochs", "passes over the training data"): sizes("epochs", "{:.1f}".format),
        Column("steps", "optimiser steps"): sizes("steps", "{:,.0f}".format),
        Column("skipped", "batches without a finite loss or gradient, or that did not fit in memory"): [
            TableCell(f"{x:,}", sort=x) if x else TableCell(DASH) for x in skipped
        ],
        Column("peak memory", "training process"): sizes("peak_memory_mib", mebibytes),
        Column("peak GPU memory", "PyTorch's allocator"): sizes("peak_gpu_memory_mib", mebibytes),
        Column("parameters"): sizes("parameters", count),
        Column("backend", "native: compiled kernels; reference: PyTorch operations", number=False): [
            TableCell(x or DASH, sort=x or None) for x in backends
        ],
    }
    return filled(
        Table(
            key="costs",
            label="Costs",
            title="What training costs",
            caption=(
                f"Times are {what}s: the median with the range below, over seeds. Convergence: the best "
                "error rate on dev. Level: the range overlaps with that of the lowest median, so there is "
                "no winner. " + counterpart("Tables 2 and 3")
            ),
            columns=list(columns),
            rows=[list(row) for row in zip(*columns.values(), strict=True)],
        )
    )
