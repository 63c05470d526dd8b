"""The tables of the report: train-with × evaluate-with, and what each model costs and reaches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asr.attention import MECHANISMS, parse_name
from asr.compare.estimates import Estimate, over_seeds
from asr.compare.results import Results
from asr.compare.words import DASH, count, mebibytes, metric_words, percent, seconds
from asr.errors import UserError
from asr.report import theme


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table.

    Attributes:
        text: what is shown.
        sort: what the column is sorted by; None comes last.
        tone: 0 … 1, how strongly the cell is coloured: 1 is the lowest error rate.
        note: shown on hover.
        own: whether a model runs with its own mechanism here.
        family: of the mechanism that the cell names.
        detail: in small letters below.
    """

    text: str
    sort: float | str | None = None
    tone: float | None = None
    note: str = ""
    own: bool = False
    family: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Column:
    """Head of a column; `help` is shown on hover."""

    name: str
    help: str = ""
    number: bool = True


@dataclass(frozen=True)
class Table:
    """A table with its heading and its reading."""

    key: str
    label: str
    title: str
    caption: str
    columns: list[Column]
    rows: list[list[Cell]]


def exchange_table(results: Results, split: str) -> Table | None:
    """Table 1: every model (rows) with every mechanism (columns); None where nothing was evaluated."""
    if not results.metrics(split):
        return None
    metric = results.metrics(split)[0]
    attentions = results.attentions()
    rates = {
        (candidate.label, attention): results.error_rate(candidate.label, split, metric, attention)
        for candidate in results.candidates
        for attention in attentions
    }
    found = [estimate.mean for estimate in rates.values() if estimate]
    if not found:
        return None
    rows = []
    for candidate in results.candidates:
        cells = [_model_cell(candidate.label, candidate.attention, candidate.finetuned_from)]
        for attention in attentions:
            estimate = rates[candidate.label, attention]
            own = attention == candidate.attention
            if estimate is None:
                reason = gap(results, candidate.label, split, attention)
                cells.append(Cell(DASH, note=reason, detail=reason, own=own))
            else:
                cells.append(_rate_cell(estimate, tone(estimate.mean, found), own))
        rows.append(cells)
    heads = [Column(name, f"{metric_words(metric)} when run with {name}") for name in attentions]
    return Table(
        key=f"table-1-{split}",
        label="Table 1",
        title=f"Trained with one mechanism, run with another: {metric_words(metric)} in % on {split}",
        caption=(
            "Rows: what a model was trained with; columns: what it was run with. Framed: its own mechanism. "
            "Stronger colour: lower error rate. Where keys are not shared (lsh and shared-full need keys "
            "tied to the queries), or a mechanism has parameters of its own, there is nothing to exchange."
        ),
        columns=[Column("trained with", number=False), *heads],
        rows=rows,
    )


def cost_table(results: Results) -> Table | None:
    """Tables 2 and 3: error rates, seconds per epoch, time to convergence, memory, forward pass."""
    if not results.trainings:
        return None
    clock = results.clock
    wanted = [(split, metric) for split in results.splits() for metric in results.metrics(split)]
    rates = {
        (candidate.label, split, metric): results.error_rate(candidate.label, split, metric)
        for candidate in results.candidates
        for split, metric in wanted
    }
    rows = []
    for candidate in results.candidates:
        cells = [_model_cell(candidate.label, candidate.attention, candidate.finetuned_from)]
        for split, metric in wanted:
            estimate = rates[candidate.label, split, metric]
            column = [rate.mean for (_, s, m), rate in rates.items() if rate and (s, m) == (split, metric)]
            if estimate is None:
                reason = _failure(results, candidate.label)
                cells.append(Cell(DASH, note=reason, detail=reason))
            else:
                cells.append(_rate_cell(estimate, tone(estimate.mean, column)))
        cells += _cost_cells(results, candidate.label, clock)
        rows.append(cells)
    what = "CPU" if clock == "cpu" else "wall-clock"
    columns = [
        Column("model", number=False),
        *(Column(f"{metric_words(metric)} %, {split}") for split, metric in wanted),
        Column("seeds", "trainings that finished"),
        Column("s / epoch", f"{what} seconds of training for one pass over the data"),
        Column("to convergence", f"{what} training time until the best dev error rate"),
        Column("epochs", "passes over the training data"),
        *(Column(f"forward, {split}", f"{what} time of encoder and CTC head") for split in results.splits()),
        Column("peak memory", "of the training process"),
        Column("peak GPU memory", "of PyTorch's allocator"),
        Column("parameters"),
        Column("backend", "native: compiled kernels; reference: PyTorch operations", number=False),
    ]
    table = Table(
        key="table-2",
        label="Tables 2 and 3",
        title="What each model reaches and what it costs",
        caption=(
            f"Error rates with 95 % intervals: of the mean over seeds, or, with one seed, over utterances. "
            f"Costs are {what} times and means over seeds, of the forward pass the median of its repeats."
        ),
        columns=columns,
        rows=rows,
    )
    return _without_empty_columns(table)


def search_table(results: Results) -> Table | None:
    """What tuning found for every model and mechanism; None where all were searched with the same weights."""
    tuned = [x for x in results.evaluations if x.status == "done" and x.beam]
    if not results.protocol.get("tune") or not tuned:
        return None
    rows = []
    for evaluation in tuned:
        candidate, beam = results.candidate(evaluation.candidate), evaluation.beam or {}
        weights = [beam["lm_weight"]] if beam.get("lm") else []
        rows.append(
            [
                _model_cell(candidate.label, candidate.attention, candidate.finetuned_from),
                Cell(
                    evaluation.attention, sort=evaluation.attention, family=theme.family(evaluation.attention)
                ),
                Cell(str(evaluation.seed), sort=evaluation.seed),
                Cell(evaluation.split, sort=evaluation.split),
                *(Cell(f"{x:g}", sort=x) for x in (*weights, beam["word_score"], beam["size"])),
            ]
        )
    lm = [Column("LM weight")] if results.protocol["beam"].get("lm") else []
    return Table(
        key="table-search",
        label="Search",
        title=f"Weights of the {results.protocol['decoder']} search, tuned on {results.protocol['tune']}",
        caption="Found for every model and mechanism by its word error rate; all else is the same.",
        columns=[
            Column("model", number=False),
            Column("run with", number=False),
            Column("seed"),
            Column("split", number=False),
            *lm,
            Column("word score"),
            Column("hypotheses kept"),
        ],
        rows=rows,
    )


def tone(rate: float, rates: list[float]) -> float:
    """Return how strongly a rate is coloured: 1 for the lowest of all, 0 from twice the lowest on."""
    lowest = min(rates)
    if lowest <= 0:
        return 1.0 if rate <= 0 else 0.0
    return max(0.0, min(1.0, 2.0 - rate / lowest))


def gap(results: Results, label: str, split: str, attention: str) -> str:
    """Say why there is no error rate for a model and a mechanism."""
    wanted = (label, split, attention)
    tried = [x for x in results.evaluations if (x.candidate, x.split, x.attention) == wanted]
    if any(x.status == "failed" for x in tried):
        return "failed"
    if not results.trainings_of(label):
        return "not trained"
    try:
        trained = MECHANISMS[parse_name(results.candidate(label).attention).mechanism]
        other = MECHANISMS[parse_name(attention).mechanism]
    except UserError:
        return "not evaluated"
    if trained is not other and not (trained.exchangeable and other.exchangeable):
        return "own parameters"
    if _shares_keys(other) and not _shares_keys(trained):
        return "keys not shared"
    return "not evaluated"


def _shares_keys(mechanism: Any) -> bool:
    return bool(getattr(mechanism.build, "needs_shared_keys", False))


def _model_cell(label: str, attention: str, finetuned_from: str | None) -> Cell:
    detail = f"finetuned from {finetuned_from}" if finetuned_from else ""
    return Cell(label, sort=label, family=theme.family(attention), note=attention, detail=detail)


def _rate_cell(estimate: Estimate, strength: float, own: bool = False) -> Cell:
    shown, _, interval = percent(estimate).partition(" ")
    seeds = f"{estimate.count} seeds" if estimate.count > 1 else "one seed"
    note = f"95 % interval over {estimate.over}, {seeds}" if interval else seeds
    return Cell(shown, sort=estimate.mean, tone=strength, note=note, own=own, detail=interval.strip("()"))


def _cost_cells(results: Results, label: str, clock: str) -> list[Cell]:
    trainings = results.trainings_of(label)

    def mean(given: Sequence[float | None]) -> Estimate | None:
        values = [value for value in given if value is not None]
        return over_seeds(values) if values else None

    def timed(estimate: Estimate | None) -> Cell:
        value = estimate.mean if estimate else None
        return Cell(seconds(value), sort=value)

    epochs, memory = mean([x.epochs for x in trainings]), mean([x.peak_memory_mib for x in trainings])
    gpu = mean([x.peak_gpu_memory_mib for x in trainings])
    parameters = mean([x.parameters for x in trainings])
    forward = [_forward_cell(results, label, split) for split in results.splits()]
    backends = ", ".join(dict.fromkeys(x.backend for x in trainings if x.backend))
    return [
        Cell(str(len(trainings)), sort=len(trainings), note=f"of {len(results.candidate(label).seeds)}"),
        timed(mean([x.epoch_s(clock) for x in trainings])),
        timed(mean([x.best_s(clock) for x in trainings])),
        Cell(f"{epochs.mean:.1f}" if epochs else DASH, sort=epochs.mean if epochs else None),
        *forward,
        Cell(mebibytes(memory.mean if memory else None), sort=memory.mean if memory else None),
        Cell(mebibytes(gpu.mean if gpu else None), sort=gpu.mean if gpu else None),
        Cell(count(parameters.mean if parameters else None), sort=parameters.mean if parameters else None),
        Cell(backends or DASH, sort=backends or None),
    ]


def _forward_cell(results: Results, label: str, split: str) -> Cell:
    value = results.forward_s(label, split)
    audio_s = next((x.audio_s for x in results.evaluations_of(label, split) if x.audio_s), None)
    speed = f"{audio_s / value:.0f} × real time" if value and audio_s else ""
    return Cell(seconds(value), sort=value, detail=speed)


def _failure(results: Results, label: str) -> str:
    return "failed" if any(failure.candidate == label for failure in results.failures) else "not finished"


def _without_empty_columns(table: Table) -> Table:
    kept = [
        i
        for i in range(len(table.columns))
        if i == 0 or any(row[i].text != DASH or row[i].detail for row in table.rows)
    ]
    return Table(
        table.key,
        table.label,
        table.title,
        table.caption,
        [table.columns[i] for i in kept],
        [[row[i] for i in kept] for row in table.rows],
    )
