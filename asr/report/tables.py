"""Tables of the report: what models and single trainings reach and cost, and the tuned search weights."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from asr.console import Column, Table, TableCell, duration
from asr.experiment.records import Candidate
from asr.experiment.results import Results
from asr.report import theme
from asr.report.words import (
    LOOK_AHEAD,
    candidate_look_ahead,
    changed,
    count,
    duration_range,
    measured,
    mebibytes,
    metric_heading,
    split_heading,
)
from asr.scoring.estimates import DASH, Estimate, fastest, spread


def cost_table(results: Results) -> Table | None:
    """Tables 2 and 3: error rates, seconds per epoch, time to convergence, memory, forward pass."""
    if not results.trainings:
        return None
    clock, splits = results.clock, results.splits()
    labels = [candidate.label for candidate in results.candidates]
    columns = [Column("model", number=False)]
    cells = [[model_cell(candidate)] for candidate in results.candidates]

    def add(column: Column, found: list[TableCell]) -> None:
        columns.append(column)
        for row, cell in zip(cells, found, strict=True):
            row.append(cell)

    trainings = {label: results.trainings_of(label) for label in labels}

    def add_sizes(column: Column, name: str, form: Callable[[float], str]) -> None:
        sizes = [spread([getattr(x, name) for x in found], "seeds") for found in trainings.values()]
        add(column, [TableCell(form(x.value), sort=x.value) if x else TableCell(DASH) for x in sizes])

    def add_rates(column: Column, rates: list[Estimate | None], metric: str) -> None:
        known = [rate.value for rate in rates if rate]
        add(
            column,
            [
                rate_cell(rate, metric, tone(rate.value, known)) if rate else _gap_cell(results, label)
                for label, rate in zip(labels, rates, strict=True)
            ],
        )

    for split in splits:
        metrics = results.metrics(split)
        for metric in metrics:
            if metric == "cer" and "wer" in metrics and metric != metrics[0]:
                continue  # adds nothing to the word error rate
            rates = [results.error_rate(label, split, metric) for label in labels]
            add_rates(Column(split_heading(results, metric, split)), rates, metric)
    if not splits:
        head = Column(f"dev {metric_heading(results.dev_measure())}", "at the best checkpoint")
        add_rates(head, [results.dev_error(label) for label in labels], results.dev_measure())
    add(
        Column("seeds", "finished trainings"),
        [
            TableCell(str(len(found)), sort=len(found), note=f"of {len(results.candidate(label).seeds)}")
            for label, found in trainings.items()
        ],
    )
    skipped = [sum(x.skipped_batches or 0 for x in found) for found in trainings.values()]
    add(
        Column("skipped", "batches without a finite loss or gradient, or that did not fit in memory"),
        [TableCell(f"{x:,}", sort=x) if x else TableCell(DASH) for x in skipped],
    )
    what = "CPU" if clock == "cpu" else "wall-clock"
    epoch = {label: spread([x.epoch_s(clock) for x in found], "seeds") for label, found in trainings.items()}
    best = {label: spread([x.best_s(clock) for x in found], "seeds") for label, found in trainings.items()}
    add(Column("s / epoch", f"{what} time of training per pass over the data"), time_cells(epoch))
    add(Column("to convergence", f"{what} training time to the best dev error rate"), time_cells(best))
    add_sizes(Column("epochs", "passes over the training data"), "epochs", "{:.1f}".format)
    for split in splits:
        times = {label: results.forward_time(label, split) for label in labels}
        audio = {
            label: next((x.audio_s for x in results.evaluations_of(label, split)), 0) for label in labels
        }
        add(
            Column(f"forward, {split}", f"{what} time of encoder and head"),
            [
                replace(cell, detail=f"{cell.detail}, {seconds / time.value:.0f} × real time".strip(", "))
                if time and seconds
                else cell
                for cell, time, seconds in zip(time_cells(times), times.values(), audio.values(), strict=True)
            ],
        )
    add_sizes(Column("peak memory", "training process"), "peak_memory_mib", mebibytes)
    add_sizes(Column("peak GPU memory", "PyTorch's allocator"), "peak_gpu_memory_mib", mebibytes)
    add_sizes(Column("parameters"), "parameters", count)
    ahead = [candidate_look_ahead(results, candidate) for candidate in results.candidates]
    add(Column("look-ahead, ms", LOOK_AHEAD), [TableCell(x) for x in ahead])
    backends = [
        ", ".join(dict.fromkeys(x.backend for x in found if x.backend)) for found in trainings.values()
    ]
    add(
        Column("backend", "native: compiled kernels; reference: PyTorch operations", number=False),
        [TableCell(x or DASH, sort=x or None) for x in backends],
    )
    filled = [
        i for i in range(len(columns)) if i == 0 or any(x[i].text != DASH or x[i].detail for x in cells)
    ]
    return Table(
        key="table-2",
        label="Tables 2 and 3",
        title="What each model reaches and what it costs",
        caption=(
            f"Error rates with 95 % intervals: over seeds, or over {results.unit} for a single seed. "
            f"Times are {what} times: the median with the range below, over repeats for the forward pass and "
            "over seeds for training. Level: the range overlaps with that of the lowest median, so there is "
            "no winner."
        ),
        columns=[columns[i] for i in filled],
        rows=[[row[i] for i in filled] for row in cells],
    )


def seeds_table(results: Results) -> Table | None:
    """Return the error rates of each seed with its steps and training time; None with one seed per model."""
    trainings = {x.label: results.trainings_of(x.label) for x in results.candidates}
    if max(map(len, trainings.values()), default=0) < 2:
        return None
    splits, cpu, dev = results.splits(), results.clock == "cpu", results.dev_measure()
    heads = [(split, results.metrics(split)[0]) for split in splits if results.metrics(split)]

    def rates(label: str, split: str, metric: str) -> TableCell:
        found = {x.seed: x.rates.get(metric, {}).get("rate") for x in results.evaluations_of(label, split)}
        return each([found.get(x.seed) for x in trainings[label]], lambda rate: one(rate, metric))

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
        key="table-seeds",
        label="Every training",
        title="Error rates, steps and training time of each seed",
        caption="One value for each seed, with the model's own mechanism.",
        columns=[
            Column("model", number=False),
            Column("seeds"),
            *(Column(split_heading(results, metric, split)) for split, metric in heads),
            *([] if heads else [Column(f"dev {metric_heading(dev)}", "at the best checkpoint")]),
            Column("steps"),
            Column("training, CPU s" if cpu else "training, s", "training steps without validation"),
        ],
        rows=rows,
    )


def time_cells(times: dict[str, Estimate | None]) -> list[TableCell]:
    """Return a column of times with their ranges; mark the fastest, or all that are level with it.

    Without a spread for each time, none is marked.
    """
    known = {label: time for label, time in times.items() if time}
    # A model must not win by less than its repeats differ.
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


def search_table(results: Results) -> Table | None:
    """Tuned search weights of every model and mechanism; None without tuning."""
    tuned = [x for x in results.evaluations if x.status == "done" and x.beam]
    if not results.protocol.get("tune") or not tuned:
        return None
    rows = []
    for evaluation in tuned:
        candidate, beam = results.candidate(evaluation.candidate), evaluation.beam or {}
        attention = evaluation.variant
        weights = [beam["lm_weight"]] if beam.get("lm") else []
        rows.append(
            [
                model_cell(candidate),
                TableCell(attention, sort=attention, family=theme.family(attention)),
                TableCell(str(evaluation.seed), sort=evaluation.seed),
                TableCell(evaluation.split, sort=evaluation.split),
                *(TableCell(f"{x:g}", sort=x) for x in (*weights, beam["word_score"], beam["size"])),
            ]
        )
    lm = [Column("LM weight")] if results.protocol["beam"].get("lm") else []
    return Table(
        key="table-search",
        label="Search",
        title=f"Weights of the {results.protocol['decoder']} search, tuned on {results.protocol['tune']}",
        caption="Tuned for the lowest word error rate, separately for every model and mechanism.",
        columns=[
            Column("model", number=False),
            Column("run with", number=False),
            Column("seed"),
            Column("split", number=False),
            *lm,
            Column("word score"),
            Column("beam size"),
        ],
        rows=rows,
    )


def tone(rate: float, rates: Sequence[float]) -> float:
    """Return the strength of a rate's background: 1 for the lowest, falling to 0 at twice the lowest."""
    lowest = min(rates)
    if lowest <= 0:
        return 1.0 if rate <= 0 else 0.0
    return max(0.0, min(1.0, 2.0 - rate / lowest))


def model_cell(candidate: Candidate) -> TableCell:
    """Return the head of a model's row."""
    label, attention, source = candidate.label, candidate.attention, candidate.finetuned_from
    detail = f"finetuned from {source}" if source else ""
    return TableCell(label, sort=label, family=theme.family(attention), note=attention, detail=detail)


def difference_cell(difference: Estimate, metric: str, note: str = "") -> TableCell:
    """Return a paired difference with its interval below."""
    shown, _, interval = changed(difference, metric).partition(" ")
    return TableCell(shown, sort=difference.value, detail=interval.strip("()"), note=note)


def rate_cell(estimate: Estimate, metric: str, strength: float, own: bool = False) -> TableCell:
    """Return a measure with its interval, coloured by `tone`."""
    shown, _, interval = measured(estimate, metric).partition(" ")
    seeds = f"{estimate.count} seeds" if estimate.count > 1 else "one seed"
    note = f"95 % interval over {estimate.over}, {seeds}" if interval else seeds
    return TableCell(
        shown, sort=estimate.value, tone=strength, note=note, own=own, detail=interval.strip("()")
    )


def _gap_cell(results: Results, label: str) -> TableCell:
    reason = "failed" if any(x.candidate == label for x in results.failures) else "not finished"
    return TableCell(DASH, note=reason, detail=reason)
