"""Error rates, steps and training time of every seed."""

from collections.abc import Callable

from asr.console import Column, Table, TableCell
from asr.experiment.results import Results
from asr.report.tables.cells import model_cell
from asr.report.words import measured, metric_heading, split_heading
from asr.scoring.statistics import DASH, Estimate


def table(results: Results) -> Table | None:
    """Return the error rates of each seed with its steps and training time; None with one seed per model."""
    trainings = {x.label: results.trainings_of(x.label) for x in results.candidates}
    if max(map(len, trainings.values()), default=0) < 2:
        return None
    splits, cpu, dev = results.splits(), results.clock == "cpu", results.dev_measure()
    heads = [(split, results.metrics(split)[0]) for split in splits if results.metrics(split)]

    def rates(label: str, split: str, metric: str) -> TableCell:
        by_seed = {x.seed: x.rates.get(metric, {}).get("rate") for x in results.evaluations_of(label, split)}
        return each([by_seed.get(x.seed) for x in trainings[label]], lambda rate: one(rate, metric))

    def one(rate: float, metric: str) -> str:
        return measured(Estimate(rate, None, None, 1, ""), metric)

    def each(values: list[float | None], form: Callable[[float], str]) -> TableCell:
        return TableCell(", ".join(DASH if value is None else form(value) for value in values) or DASH)

    rows = []
    for candidate in results.candidates:
        trained = trainings[candidate.label]
        cells = [model_cell(candidate), each([x.seed for x in trained], str)]
        cells += [rates(candidate.label, split, metric) for split, metric in heads]
        if not heads:
            cells.append(each([x.dev_error for x in trained], lambda rate: one(rate, dev)))
        times = [x.train_cpu_s if cpu else x.train_s for x in trained]
        rows.append([*cells, each([x.steps for x in trained], "{:,}".format), each(times, "{:,.0f}".format)])
    return Table(
        key="seeds",
        label="Every training",
        title="Error rates, steps and training time of each seed",
        caption="One value for each seed; models run with the mechanism they were trained with.",
        columns=[
            Column("model", number=False),
            Column("seeds"),
            *(Column(split_heading(results, metric, split)) for split, metric in heads),
            *([] if heads else [Column(f"dev {metric_heading(dev)}", "at the best checkpoint")]),
            Column("steps"),
            Column(f"training, {'CPU ' if cpu else ''}s", "training steps without validation"),
        ],
        rows=rows,
    )
