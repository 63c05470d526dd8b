"""Results on a terminal: error rate and cost of each candidate, and the train-with × evaluate-with matrix."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from asr.compare.estimates import Estimate, pareto_front
from asr.compare.results import Results, Training


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
    metrics, splits = results.metrics(), results.splits()
    by_cpu = results.protocol["clock"] == "cpu"
    unit = "CPU s" if by_cpu else "s"
    for split in splits:
        for metric in metrics[:1]:
            table.add_column(f"{metric.upper()} %, {split}", justify="right")
        table.add_column(f"forward {unit}, {split}", justify="right")
    if not splits:
        table.add_column("dev error %", justify="right")
    for heading in (f"{unit} an epoch", f"{unit} to best", "peak MiB", "steps", "seeds"):
        table.add_column(heading, justify="right")
    fronts = {split: _front(results, split) for split in splits}
    for candidate in results.candidates:
        label = candidate.label
        row = []
        for split in splits:
            row.append(percent(results.error_rate(label, split, metrics[0])) if metrics else "–")
            seconds = results.forward_s(label, split, clock="cpu" if by_cpu else "wall")
            mark = " *" if label in fronts[split] else ""
            row.append("–" if seconds is None else f"{seconds:.3g}{mark}")
        trained = results.trainings_of(label)
        if not splits:
            errors = [x.dev_error for x in trained if x.dev_error is not None]
            row.append(f"{100 * sum(errors) / len(errors):.2f}" if errors else "–")
        row += [_mean([_epoch_s(x, by_cpu) for x in trained])]
        row += [_mean([x.time_to_best_cpu_s if by_cpu else x.time_to_best_s for x in trained])]
        row += [_mean([x.peak_memory_mib for x in trained]), _mean([x.steps for x in trained])]
        table.add_row(label, *row, f"{len(trained)}/{len(candidate.seeds)}")
    table.caption = (
        "* nothing is both faster and better; intervals are 95 %, over seeds where there are several"
    )
    return table


def _epoch_s(training: Training, by_cpu: bool) -> float | None:
    seconds = training.train_cpu_s if by_cpu else training.train_s
    return seconds / training.epochs if seconds is not None and training.epochs else None


def _mean(values: Sequence[float | None]) -> str:
    """Return the mean of what is known, in three figures or more."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = sum(known) / len(known)
    return f"{mean:.0f}" if mean >= 100 else f"{mean:.3g}"


def matrix(results: Results, split: str) -> Table:
    """Return the error rate of every model (row) with every mechanism (column); Table 1 of the paper."""
    metric = next(iter(results.metrics()), "per")
    title = f"{metric.upper()} % on {split}: trained with (rows), evaluated with (columns)"
    table = Table("", title=title, title_justify="left")
    attentions = results.attentions()
    for attention in attentions:
        table.add_column(attention, justify="right")
    for candidate in results.candidates:
        row = []
        for attention in attentions:
            rate = results.error_rate(candidate.label, split, metric, attention)
            text = "–" if rate is None else f"{100 * rate.mean:.2f}"
            row.append(f"[bold]{text}[/]" if attention == candidate.attention else text)
        table.add_row(candidate.label, *row)
    return table


def percent(rate: Estimate | None) -> str:
    """Return a rate with its interval, in percent."""
    if rate is None:
        return "–"
    shown = f"{100 * rate.mean:.2f}"
    if rate.low is None or rate.high is None:
        return shown
    return f"{shown} ({100 * max(rate.low, 0):.2f} … {100 * rate.high:.2f})"


def _front(results: Results, split: str) -> set[str]:
    """Return the labels of candidates that no other one beats in both error and time."""
    points = list(_points(results, split))
    front = pareto_front([(seconds, error) for _, seconds, error in points])
    return {points[i][0] for i in front}


def _points(results: Results, split: str) -> Iterator[tuple[str, float, float]]:
    for candidate in results.candidates:
        by = "cpu" if results.protocol["clock"] == "cpu" else "wall"
        seconds = results.forward_s(candidate.label, split, clock=by)
        metrics = results.metrics()
        rate = results.error_rate(candidate.label, split, metrics[0]) if metrics else None
        if seconds is not None and rate is not None:
            yield candidate.label, seconds, rate.mean
