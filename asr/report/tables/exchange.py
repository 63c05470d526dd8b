"""Error rates of every model with every mechanism it can run with, and changes by each exchange."""

from collections.abc import Callable

from asr.attention.table import MECHANISMS, exchange, is_causal
from asr.console import Column, Table, TableCell
from asr.errors import UserError
from asr.experiment.candidates import can_run, is_exchangeable
from asr.experiment.records import Candidate
from asr.experiment.results import Results
from asr.experiment.variant import Variant
from asr.report.tables.cells import difference_cell, model_cell, rate_cell, tone
from asr.report.words import counterpart, metric_words
from asr.scoring.measures import is_share
from asr.scoring.statistics import DASH


def table(results: Results, split: str) -> Table | None:
    """Return error rates of every model (rows) with every mechanism (columns); None if none was exchanged."""
    if not _exchanged(results, split):
        return None
    metric = results.metrics(split)[0]
    family = _family(results)
    others = ", ".join(x.label for x in results.candidates if x not in family)
    attentions = _mechanisms(results)
    rates = {
        (candidate.label, attention): results.error_rate(candidate.label, split, metric, attention)
        for candidate in family
        for attention in attentions
    }
    values = [estimate.value for estimate in rates.values() if estimate]
    if not values:
        return None

    def cell(candidate: Candidate, attention: str) -> TableCell:
        estimate, own = rates[candidate.label, attention], attention == candidate.attention
        if estimate is None:
            reason = gap(results, candidate.label, split, attention)
            return TableCell(DASH, note=reason, detail=reason, own=own)
        return rate_cell(estimate, metric, tone(estimate.value, values), own)

    tied = sorted(name for name in MECHANISMS if exchange(name) not in ("yes", "no"))
    unit = " in %" if is_share(metric) else ""
    return Table(
        key=f"exchange-{split}",
        label="Exchange",
        title=f"Trained with one mechanism, run with another: {metric_words(metric)}{unit} on {split}",
        caption=(
            "Rows: mechanism used in training; columns: mechanism used in the evaluation. A frame marks "
            "models run as they were trained, a stronger colour a lower error rate. "
            f"{' and '.join(tied)} need keys that are tied to the queries."
            + (f" Not shown, because not exchangeable: {others}. " if others else " ")
            + counterpart("Table 1")
        ),
        columns=_columns(results, metric),
        rows=_rows(results, cell),
    )


def changes(results: Results, split: str) -> Table | None:
    """Return the change by each exchange, paired over seeds and utterances; None without exchanges."""
    if not _exchanged(results, split):
        return None
    metric = results.metrics(split)[0]

    def cell(candidate: Candidate, attention: str) -> TableCell:
        own = attention == candidate.attention
        systems = (candidate.label, attention), (candidate.label, candidate.attention)
        change = results.difference(*systems, split, metric)
        if own or change is None:
            return TableCell(DASH, note="own mechanism" if own else "not measured", own=own)
        note = (
            f"95 % interval over {change.over}; seeds: {change.count}" if change.interval else "no interval"
        )
        return difference_cell(change, metric, note)

    unit = " in points" if is_share(metric) else ""
    return Table(
        key=f"changes-{split}",
        label="Exchange",
        title=f"Change of {metric_words(metric)}{unit} by running with another mechanism, on {split}",
        caption=(
            "Rows: mechanism used in training, with which the others are compared; columns: mechanism used "
            "in the evaluation. Below each change is the 95 % interval of the paired difference; where it "
            "includes zero, no difference is shown."
        ),
        columns=_columns(results, metric),
        rows=_rows(results, cell),
    )


def _exchanged(results: Results, split: str) -> bool:
    """Return whether trained models were evaluated with mechanisms that they weren't trained with."""
    return bool(results.metrics(split)) and any(
        x.split == split
        and results.was_trained(x.candidate)
        and Variant.read(x.variant).attention == x.variant != results.own(x.candidate)
        for x in results.evaluations
    )


def _family(results: Results) -> list[Candidate]:
    return [x for x in results.candidates if _is_softmax(results, x.attention)]


def _mechanisms(results: Results) -> list[str]:
    plain = [name for name in results.variants() if Variant.read(name).attention == name]
    return [name for name in plain if _is_softmax(results, name)]


def _columns(results: Results, metric: str) -> list[Column]:
    names = _mechanisms(results)
    heads = [Column(name, f"{metric_words(metric)} when run with {name}") for name in names]
    return [Column("trained with", number=False), *heads]


def _rows(results: Results, cell: Callable[[Candidate, str], TableCell]) -> list[list[TableCell]]:
    names = _mechanisms(results)
    return [[model_cell(x), *(cell(x, name) for name in names)] for x in _family(results)]


def gap(results: Results, label: str, split: str, attention: str) -> str:
    """Return why a model and a mechanism have no error rate."""
    wanted = (label, split, attention)
    tried = [x for x in results.evaluations if (x.candidate, x.split, x.variant) == wanted]
    if any(x.status == "failed" for x in tried):
        return "failed"
    if not results.trainings_of(label):
        return "not trained"
    trained = results.candidate(label).attention
    try:
        if can_run(trained, attention):
            return "not evaluated"
        if is_causal(trained) and not is_causal(attention):
            return "not causal"
        both = is_exchangeable(trained) and is_exchangeable(attention)
        return "keys not tied" if both else "not exchangeable"
    except UserError:  # see `_is_softmax`
        return "not evaluated"


def _is_softmax(results: Results, attention: str) -> bool:
    try:
        return is_exchangeable(attention)
    except UserError:  # its module isn't loaded, or a later version wrote the results: judge by the results
        pairs = ((results.candidate(x.candidate).attention, x.variant) for x in results.evaluations)
        return any(attention in pair and pair[0] != pair[1] for pair in pairs)
