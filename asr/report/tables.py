"""The report's tables: what each model reaches and costs, and how the search was tuned."""

from collections.abc import Sequence
from dataclasses import dataclass

from asr.compare.estimates import Estimate, over_seeds
from asr.compare.records import Candidate
from asr.compare.results import Results
from asr.compare.words import DASH, count, mebibytes, metric_words, percent, seconds
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


def cost_table(results: Results) -> Table | None:
    """Tables 2 and 3: error rates, seconds per epoch, time to convergence, memory, forward pass."""
    if not results.trainings:
        return None
    clock = results.clock
    wanted = [(split, metric) for split in results.splits() for metric in _shown_metrics(results, split)]
    rates = {
        (candidate.label, split, metric): results.error_rate(candidate.label, split, metric)
        for candidate in results.candidates
        for split, metric in wanted
    }
    rows = []
    for candidate in results.candidates:
        cells = [model_cell(candidate)]
        for split, metric in wanted:
            estimate = rates[candidate.label, split, metric]
            column = [rate.mean for (_, s, m), rate in rates.items() if rate and (s, m) == (split, metric)]
            if estimate is None:
                reason = _failure(results, candidate.label)
                cells.append(Cell(DASH, note=reason, detail=reason))
            else:
                cells.append(rate_cell(estimate, tone(estimate.mean, column)))
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


def _shown_metrics(results: Results, split: str) -> list[str]:
    """Return the error rates of a split that say something of their own: characters follow from words."""
    metrics = results.metrics(split)
    return [name for name in metrics if name != "cer" or "wer" not in metrics or name == metrics[0]]


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
                model_cell(candidate),
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


def model_cell(candidate: Candidate) -> Cell:
    """Return the head of a model's row."""
    label, source = candidate.label, candidate.finetuned_from
    detail = f"finetuned from {source}" if source else ""
    return Cell(
        label, sort=label, family=theme.family(candidate.attention), note=candidate.attention, detail=detail
    )


def rate_cell(estimate: Estimate, strength: float, own: bool = False) -> Cell:
    """Return an error rate with its interval, coloured by `tone`."""
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
