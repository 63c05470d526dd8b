"""Results on a terminal: error rate and cost of each candidate, and the train-with × evaluate-with matrix."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from asr.compare.results import Results
from asr.compare.words import DASH, metric_words, percent


def print_results(results: Results, console: Console) -> None:
    """Print a table of candidates, a matrix for each split, and what failed."""
    console.print(candidate_table(results))
    for split in results.splits():
        if len(results.attentions()) > 1:
            console.print(matrix(results, split))
    for failure in results.failures:
        console.print(
            f"FAILED {failure.cell}: {failure.error} (log: {failure.log})",
            style="red",
            markup=False,
            soft_wrap=True,
        )


def candidate_table(results: Results) -> Table:
    """Return error rates, training cost and the time of a forward pass of every candidate."""
    title = f"{results.recipe}: {results.protocol['budget']}"
    table = Table("candidate", title=title, title_justify="left")
    splits, clock = results.splits(), results.clock
    heads = {split: results.metrics(split)[:1] for split in splits}
    unit = "CPU s" if clock == "cpu" else "s"
    for split in splits:
        for metric in heads[split]:
            table.add_column(f"{metric_words(metric)} %, {split}", justify="right")
        table.add_column(f"forward {unit}, {split}", justify="right")
    if not splits:
        table.add_column("dev error %", justify="right")
    for heading in (f"{unit} an epoch", f"{unit} to best", "peak MiB", "steps", "seeds"):
        table.add_column(heading, justify="right")
    fronts = {split: results.front(split) for split in splits}
    for candidate in results.candidates:
        label = candidate.label
        row = []
        for split in splits:
            row += [percent(results.error_rate(label, split, metric)) for metric in heads[split]]
            seconds = results.forward_s(label, split)
            mark = " *" if label in fronts[split] else ""
            row.append(DASH if seconds is None else f"{seconds:.3g}{mark}")
        trained = results.trainings_of(label)
        if not splits:
            errors = [x.dev_error for x in trained if x.dev_error is not None]
            row.append(f"{100 * sum(errors) / len(errors):.2f}" if errors else DASH)
        row += [_mean([x.epoch_s(clock) for x in trained]), _mean([x.best_s(clock) for x in trained])]
        row += [_mean([x.peak_memory_mib for x in trained]), _mean([x.steps for x in trained])]
        table.add_row(label, *row, f"{len(trained)}/{len(candidate.seeds)}")
    table.caption = (
        "* nothing is both faster and better; intervals are 95 %, over seeds where there are several"
    )
    return table


def _mean(values: Sequence[float | None]) -> str:
    """Return the mean of what is known, in three figures or more."""
    known = [value for value in values if value is not None]
    if not known:
        return DASH
    mean = sum(known) / len(known)
    return f"{mean:.0f}" if mean >= 100 else f"{mean:.3g}"


def matrix(results: Results, split: str) -> Table:
    """Return the error rate of every model (row) with every mechanism (column); Table 1 of the paper."""
    metric = next(iter(results.metrics(split)), "per")
    title = f"{metric_words(metric)} % on {split}: trained with (rows), evaluated with (columns)"
    table = Table("", title=title, title_justify="left")
    attentions = results.attentions()
    for attention in attentions:
        table.add_column(attention, justify="right")
    for candidate in results.candidates:
        row = []
        for attention in attentions:
            rate = results.error_rate(candidate.label, split, metric, attention)
            text = DASH if rate is None else f"{100 * rate.mean:.2f}"
            row.append(f"[bold]{text}[/]" if attention == candidate.attention else text)
        table.add_row(candidate.label, *row)
    return table
