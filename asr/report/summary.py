"""Tables of a comparison: on the terminal, and those of differences and learning rates in the report."""

from rich.console import Console

from asr.console import Column, Table, TableCell, is_share
from asr.experiment.results import Results
from asr.report.tables import difference_cell
from asr.report.words import (
    LOOK_AHEAD,
    candidate_look_ahead,
    changed,
    conditions_words,
    measured,
    metric_heading,
    metric_words,
    split_heading,
)
from asr.scoring.estimates import DASH, Estimate, fastest, spread


def print_results(results: Results, console: Console) -> None:
    """Print the table of candidates, a matrix per split, warnings about a busy machine, and failures."""
    console.print(candidate_table(results))
    if table := rates_table(results):
        console.print(table)
    for split in results.splits():
        if results.exchanges(split):
            console.print(matrix(results, split))
        if table := difference_table(results, split):
            console.print(table)
    for split, conditions in results.conditions.items():
        if conditions.busy():
            console.print(conditions_words(split, conditions), style="yellow", markup=False, soft_wrap=True)
    for failure in results.failures:
        text = f"FAILED {failure.cell}: {failure.error} (log: {failure.log})"
        console.print(text, style="red", markup=False, soft_wrap=True)


def candidate_table(results: Results) -> Table:
    """Return a table of error rates, training costs and forward times of all candidates."""
    splits, clock = results.splits(), results.clock
    heads = {split: results.metrics(split)[:1] for split in splits}
    unit = "CPU s" if clock == "cpu" else "s"
    names = ["candidate"]
    for split in splits:
        names += [split_heading(results, metric, split) for metric in heads[split]]
        names.append(f"forward {unit}, {split}")
    dev = results.dev_measure()
    if not splits:
        names.append(f"dev {metric_heading(dev)}")
    names += ["look-ahead, ms", f"{unit} per epoch", f"{unit} to best", "peak MiB", "steps", "seeds"]
    fronts = {split: results.front(split) for split in splits}
    times = {
        split: {x.label: time for x in results.candidates if (time := results.forward_time(x.label, split))}
        for split in splits
    }
    level = {split: fastest(times[split]) if times[split] else [] for split in splits}
    rows = []
    for candidate in results.candidates:
        label = candidate.label
        row = [label]
        for split in splits:
            row += [measured(results.error_rate(label, split, metric), metric) for metric in heads[split]]
            marks = " =" if label in level[split] and len(level[split]) > 1 else ""
            marks += " *" if label in fronts[split] else ""
            row.append(_number(times[split].get(label)) + marks)
        trained = results.trainings_of(label)
        if not splits:
            row.append(measured(results.dev_error(label), dev))
        row.append(candidate_look_ahead(results, candidate))
        costs = [[x.epoch_s(clock) for x in trained], [x.best_s(clock) for x in trained]]
        costs += [[x.peak_memory_mib for x in trained]]
        row += [_number(spread(values, "seeds")) for values in costs]
        row.append(_number(spread([x.steps for x in trained], "seeds"), whole=True))
        rows.append([*row, f"{len(trained)}/{len(candidate.seeds)}"])
    caption = (
        "error rates: 95 % interval, over seeds if there are several; costs: median (lowest–highest) of "
        "repeats or seeds\n* Pareto front of error rate and forward time; = level with the fastest: the "
        f"ranges overlap\nlook-ahead: {LOOK_AHEAD}"
    )
    return Table.of(f"{results.recipe}: {results.protocol.get('budget', '')}", names, rows, caption=caption)


def rates_table(results: Results) -> Table | None:
    """Return the learning rates that each candidate was tried with; None if none was chosen."""
    if not results.tried:
        return None
    rates = sorted({x.rate for x in results.tried})
    dev, cpu = results.dev_measure(), results.clock == "cpu"
    rows = []
    for label in dict.fromkeys(x.candidate for x in results.tried):
        found = {x.rate: x for x in results.tried if x.candidate == label}
        chosen = next(x for x in found.values() if x.chosen)
        cells = [TableCell(label, sort=label)]
        for rate in rates:
            error, loss = found[rate].dev_error, found[rate].dev_loss
            text = measured(None if error is None else Estimate(error, None, None, 1, ""), dev)
            detail = "failed" if error is None else DASH if loss is None else f"{loss:.3f}"
            cells.append(TableCell(text, sort=error, detail=detail, own=found[rate] is chosen))
        at_end = " (at the end)" if chosen.rate in (rates[0], rates[-1]) else ""
        cells.append(TableCell(f"{chosen.rate:g}{at_end}", sort=chosen.rate))
        spent_s = sum((x.train_cpu_s if cpu else x.train_s) or 0.0 for x in found.values())
        rows.append([*cells, TableCell(f"{spent_s:,.0f}", sort=spent_s)])
    return Table(
        key="table-rates",
        label="Learning rates",
        title=f"{metric_heading(dev)} on dev (loss) by learning rate, one training each",
        caption=(
            "The rate with the lowest error on dev is chosen. Where it is at the end of the grid, a rate "
            "beyond may be better. The time is that of all trainings of the row; the one at the chosen rate "
            "serves as that of the first seed."
        ),
        columns=[
            Column("model", number=False),
            *(Column(f"{rate:g}", f"trained with the learning rate {rate:g}") for rate in rates),
            Column("chosen"),
            Column("CPU s" if cpu else "s", "training time of all rates"),
        ],
        rows=rows,
    )


def difference_table(results: Results, split: str) -> Table | None:
    """Return the difference of each candidate's error rate to a reference; None without two candidates.

    The reference is the first candidate with full attention, or else the most accurate one; with several
    training budgets, one of the same budget.
    """
    metric = next(iter(results.metrics(split)), "")
    rates = _rates(results, split, metric)
    if len(rates) < 2:
        return None
    references: dict[str, str] = {}
    for budget in dict.fromkeys(x.budget for x in results.candidates):
        group = [x.label for x in results.candidates if x.budget == budget and x.label in rates]
        full = [label for label in group if results.own(label) == "full"]
        lowest = min(group, key=rates.__getitem__, default="")
        references |= dict.fromkeys(group, full[0] if full else lowest)
    rows = []
    for label, reference in references.items():
        systems = (label, results.own(label)), (reference, results.own(reference))
        found = results.difference(*systems, split, metric)
        if found is None:
            continue
        level = results.level(label, reference, split, metric)
        verdict = "none shown" if level else "better" if found.value < 0 else "worse"
        cells = [changed(found, metric), found.over or DASH, str(found.count), verdict]
        difference = TableCell(cells[0], sort=found.value)
        rows.append([TableCell(label, sort=label), difference, *map(TableCell, cells[1:])])
    if not rows:
        return None
    unit = ", points" if is_share(metric) else ""
    compared = dict.fromkeys(references.values())
    return Table(
        key=f"table-differences-{split}",
        label="Differences",
        title=f"{metric_words(metric)} on {split}, compared with {' and with '.join(compared)}",
        caption=(
            "Difference with its 95 % interval, paired over what both models have in common. None is shown "
            "if the interval includes zero. Each interval is for its own pair: of twenty equal pairs, one "
            "looks different by chance."
        ),
        columns=[
            Column("model", number=False),
            Column(f"difference{unit}", "95 % interval of the paired difference in brackets"),
            Column("over", "what the interval covers", number=False),
            Column("seeds", "seeds that both models have"),
            Column("verdict", number=False),
        ],
        rows=rows,
    )


def pairs_table(results: Results, split: str) -> Table | None:
    """Return the differences between all candidates' error rates; None with fewer than three candidates."""
    metric = next(iter(results.metrics(split)), "")
    rates = _rates(results, split, metric)
    if len(rates) < 3:
        return None
    best_first = sorted(rates, key=rates.__getitem__)

    def cell(label: str, other: str) -> TableCell:
        systems = (label, results.own(label)), (other, results.own(other))
        found = results.difference(*systems, split, metric)
        return TableCell(DASH) if found is None else difference_cell(found, metric)

    rows = []
    for i, label in enumerate(best_first[:-1], start=1):
        cells = [cell(label, other) for other in best_first[i:]]
        rows.append([TableCell(label, sort=label), *[TableCell("")] * (i - 1), *cells])
    unit = " in points" if is_share(metric) else ""
    return Table(
        key=f"table-pairs-{split}",
        label="All pairs",
        title=f"Difference of {metric_words(metric)}{unit} on {split}, row less column",
        caption=(
            "Models are in the order of their error rates, best first. Below each difference is its paired "
            "95 % interval; where it includes zero, none is shown. Of twenty equal pairs, one looks "
            "different by chance."
        ),
        columns=[Column("model", number=False), *map(Column, best_first[1:])],
        rows=rows,
    )


def _rates(results: Results, split: str, metric: str) -> dict[str, float]:
    """Return the error rate of each candidate that has one."""
    rates = {x.label: results.error_rate(x.label, split, metric) for x in results.candidates}
    return {label: rate.value for label, rate in rates.items() if rate}


def _number(estimate: Estimate | None, whole: bool = False) -> str:
    """Format a value with its range: `4.10 (4.00–4.20)`; a whole one without decimals."""
    if estimate is None:
        return DASH

    def form(value: float) -> str:
        return f"{value:.0f}" if value >= 100 or whole else f"{value:#.3g}"

    low, _, high = estimate.ends(form).partition(DASH)
    return form(estimate.value) if low == high else estimate.text(form)


def matrix(results: Results, split: str) -> Table:
    """Return a table of error rates: models in rows, mechanisms in evaluation in columns (paper, table 1)."""
    metric = next(iter(results.metrics(split)), "per")
    title = f"{metric_heading(metric)} on {split}: trained with (rows), evaluated with (columns)"
    attentions = results.variants()
    rows = []
    for candidate in results.candidates:
        rates = [results.error_rate(candidate.label, split, metric, attention) for attention in attentions]
        texts = [measured(rate, metric).partition(" ")[0] for rate in rates]
        cells = [
            TableCell(text, own=attention == candidate.attention)
            for text, attention in zip(texts, attentions, strict=True)
        ]
        rows.append([TableCell(candidate.label), *cells])
    return Table(title, [Column("", number=False), *map(Column, attentions)], rows)
