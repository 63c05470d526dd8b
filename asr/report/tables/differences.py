"""Paired differences between models: from a reference, and between all pairs."""

from asr.console import Column, Table, TableCell
from asr.experiment.results import Results, System
from asr.report.tables.cells import difference_cell
from asr.report.words import changed, metric_words
from asr.scoring.measures import is_share, measure_of
from asr.scoring.statistics import DASH


def table(results: Results, split: str) -> Table | None:
    """Return the difference of each system's error rate from a reference's; None without two systems.

    The reference is the first candidate with full attention, or else the most accurate one; with several
    training budgets, one per budget. A variant is compared with the same model as it was trained.
    """
    metric = next(iter(results.metrics(split)), "")
    rates = _rates(results, split, metric)
    pairs: list[tuple[System, System]] = []
    for budget in dict.fromkeys(x.budget for x in results.candidates):
        group = [x.label for x in results.candidates if x.budget == budget and x.label in rates]
        full = [label for label in group if results.own(label) == "full"]
        with_whom = full[0] if full else min(group, key=rates.__getitem__, default="")
        pairs += [((x, results.own(x)), (with_whom, results.own(with_whom))) for x in group]
    models, systems = len(pairs), results.systems(split).values()
    pairs += [(x, own) for x in systems if x != (own := (x[0], results.own(x[0]))) and own in systems]
    rows, compared = [], dict.fromkeys(results.name_of(other) for _, other in pairs[:models])
    for system, reference in pairs:
        estimate = results.difference(system, reference, split, metric)
        if estimate is None:
            continue
        better = (estimate.value < 0) != measure_of(metric).higher
        level = results.level(system, reference, split, metric)
        verdict = "none shown" if level else "better" if better else "worse"
        name = results.name_of(system)
        cells = [changed(estimate, metric), estimate.over or DASH, str(estimate.count), verdict]
        difference = TableCell(cells[0], sort=estimate.value)
        rows.append([TableCell(name, sort=name), difference, *map(TableCell, cells[1:])])
    if not rows:
        return None
    unit = ", points" if is_share(metric) else ""
    others = "; variants: with their own model" if len(pairs) > models and results.trainings else ""
    return Table(
        key=f"differences-{split}",
        label="Differences",
        title=f"{metric_words(metric)} on {split}, compared with {' and with '.join(compared)}{others}",
        caption=(
            "Difference with its 95 % interval, paired over what both models have in common. If the "
            "interval includes zero, no difference is shown. Intervals don't allow for the number of pairs: "
            "of twenty equal pairs, one looks different by chance."
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


def pairs(results: Results, split: str) -> Table | None:
    """Return the differences between all candidates' error rates; None with fewer than three candidates."""
    metric = next(iter(results.metrics(split)), "")
    rates = _rates(results, split, metric)
    if len(rates) < 3:
        return None
    best_first = sorted(rates, key=rates.__getitem__)

    def cell(label: str, other: str) -> TableCell:
        systems = (label, results.own(label)), (other, results.own(other))
        estimate = results.difference(*systems, split, metric)
        return TableCell(DASH) if estimate is None else difference_cell(estimate, metric)

    rows = []
    for i, label in enumerate(best_first[:-1], start=1):
        cells = [cell(label, other) for other in best_first[i:]]
        rows.append([TableCell(label, sort=label), *[TableCell("")] * (i - 1), *cells])
    unit = " in points" if is_share(metric) else ""
    return Table(
        key=f"pairs-{split}",
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
