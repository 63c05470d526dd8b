"""Error rates of each candidate by learning rate, for the choice of its learning rate."""

from asr.console import Column, Table, TableCell
from asr.experiment.results import Results
from asr.report.words import measured, metric_heading
from asr.scoring.statistics import DASH, Estimate


def table(results: Results) -> Table | None:
    """Return the dev error rate of each candidate at each learning rate; None if none was chosen."""
    if not results.tried:
        return None
    rates = sorted({x.rate for x in results.tried})
    dev, cpu = results.dev_measure(), results.clock == "cpu"
    rows = []
    for label in dict.fromkeys(x.candidate for x in results.tried):
        trials = {x.rate: x for x in results.tried if x.candidate == label}
        chosen = next(x for x in trials.values() if x.chosen)
        cells = [TableCell(label, sort=label)]
        for rate in rates:
            error, loss = trials[rate].dev_error, trials[rate].dev_loss
            text = measured(None if error is None else Estimate(error, None, None, 1, ""), dev)
            detail = "failed" if error is None else DASH if loss is None else f"{loss:.3f}"
            cells.append(TableCell(text, sort=error, detail=detail, own=trials[rate] is chosen))
        at_end = " (at the end)" if chosen.rate in (rates[0], rates[-1]) else ""
        cells.append(TableCell(f"{chosen.rate:g}{at_end}", sort=chosen.rate))
        spent_s = sum((x.train_cpu_s if cpu else x.train_s) or 0.0 for x in trials.values())
        rows.append([*cells, TableCell(f"{spent_s:,.0f}", sort=spent_s)])
    return Table(
        key="rates",
        label="Learning rates",
        title=f"{metric_heading(dev)} on dev (loss) by learning rate, one training each",
        caption=(
            "The rate with the lowest error on dev is chosen. If it is at the end of the grid, a rate "
            "beyond may be better. The time is the sum over the row's trainings; the training at the chosen "
            "rate is also the one of the first seed."
        ),
        columns=[
            Column("model", number=False),
            *(Column(f"{rate:g}", f"trained with the learning rate {rate:g}") for rate in rates),
            Column("chosen"),
            Column("CPU s" if cpu else "s", "training time of all rates"),
        ],
        rows=rows,
    )
