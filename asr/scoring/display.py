"""Scores on the terminal: rates with intervals, speakers, the worst utterances, systems side by side."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asr.scoring.alignment import render
from asr.scoring.breakdown import by_length, confusions
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.score import METRICS, TOKEN_OF, Metric, Score, UtteranceScore


def counts_line(counts: ErrorCounts) -> str:
    """Return substitutions, deletions, insertions and the rate in one line."""
    return (
        f"S {counts.substitutions}, D {counts.deletions}, I {counts.insertions} of {counts.length} "
        f"= {_percent(counts)} %"
    )


def _percent(counts: ErrorCounts) -> str:
    return f"{100 * counts.rate:.2f}" if counts.length else "–"


def shown_metrics(entry: UtteranceScore) -> list[Metric]:
    """Return the metrics whose alignments are worth reading: characters follow from words."""
    return [metric for metric in entry.alignments if metric != "cer"]


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that tell all systems apart, of at least a split and a system."""
    parts = [folder.absolute().parts for folder in folders]
    for count in range(2, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return ["/".join(part) for part in parts]


def print_comparison(console: Console, folders: Sequence[Path], scores: Sequence[Score]) -> None:
    """Print one row for each system: its rates with 95 % intervals, and its real-time factor.

    Names that leave the rates no room stand above the table, which then has their numbers.
    """
    names = short_names(folders)
    table = _comparison_table(names, scores)
    if console.measure(table, options=console.options.update(width=10_000)).maximum > console.width:
        numbers = [str(number) for number in range(1, len(names) + 1)]
        for number, name in zip(numbers, names, strict=True):
            console.print(f"{number}  {name}", soft_wrap=True, markup=False, highlight=False)
        table = _comparison_table(numbers, scores)
    console.print(table)


def _comparison_table(names: Sequence[str], scores: Sequence[Score]) -> Table:
    metrics = [metric for metric in METRICS if metric != "cer" and any(metric in x.rates for x in scores)]
    table = Table(title="Error rates in %, with 95 % intervals", title_justify="left")
    table.add_column("system", no_wrap=True)
    for metric in metrics:
        table.add_column(metric.upper(), justify="right", no_wrap=True)
    table.add_column("RTF", justify="right", no_wrap=True)
    for name, result in zip(names, scores, strict=True):
        cells = [_rate_and_interval(result, metric) for metric in metrics]
        factor = f"{result.decode_s / result.audio_s:.3f}" if result.decode_s and result.audio_s else "–"
        table.add_row(escape(name), *cells, factor)
    return table


def _rate_and_interval(result: Score, metric: Metric) -> str:
    if metric not in result.rates:
        return "–"
    rate = result.rates[metric]
    low, high = rate.interval
    return f"{100 * rate.rate:.2f} ({100 * low:.2f} … {100 * high:.2f})"


def print_score(console: Console, folder: Path, result: Score, worst: int, most_frequent: int = 0) -> None:
    """Print the rates of one system: in all, by speaker, by length; its errors and its worst utterances."""
    console.print(_rate_table(folder, result))
    speed = ""
    if result.decode_s is not None and result.audio_s > 0:
        factor = result.decode_s / result.audio_s
        speed = f", decoded in {result.decode_s:.1f} s (real-time factor {factor:.3f})"
    audio = f", {result.audio_s:.1f} s of audio" if result.audio_s else ""
    console.print(f"{len(result.utterances)} utterances{audio}{speed}", highlight=False)
    console.print(_speaker_table(result))
    for metric in _headlines(result):
        console.print(_length_table(result, metric))
        if most_frequent > 0:
            _print_confusions(console, result, metric, most_frequent)
    if worst > 0:
        console.print("[bold]Worst utterances[/]")
    for entry in result.utterances[: max(worst, 0)]:
        for metric in shown_metrics(entry):
            counts = counts_line(entry.counts[metric])
            console.print(f"[bold]{escape(entry.id)}[/]  {metric.upper()}  {counts}", highlight=False)
            console.print(render(entry.alignments[metric], console.width), soft_wrap=True, highlight=False)


def _rate_table(folder: Path, result: Score) -> Table:
    # Phone error rates of different lexicons don't compare.
    caption = f"PER with lexicon {result.lexicon}" if "per" in result.rates and result.lexicon else None
    table = Table(title=escape(str(folder)), title_justify="left", caption=caption, caption_justify="left")
    for name in ("", "rate %", "95 % interval", "sub", "del", "ins", "of"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for metric in METRICS:
        if metric not in result.rates:
            continue
        rate = result.rates[metric]
        low, high = rate.interval
        table.add_row(
            metric.upper(),
            f"{100 * rate.rate:.2f}",
            f"{100 * low:.2f} … {100 * high:.2f}",
            str(rate.counts.substitutions),
            str(rate.counts.deletions),
            str(rate.counts.insertions),
            f"{rate.counts.length} {TOKEN_OF[metric]}s",
        )
    return table


def _speaker_table(result: Score) -> Table:
    table = Table("speaker", title="By speaker", title_justify="left")
    for name in ("utterances", *(f"{metric.upper()} %" for metric in result.rates)):
        table.add_column(name, justify="right")
    for speaker in result.speakers:
        rates = [_percent(speaker.counts[metric]) for metric in result.rates]
        table.add_row(escape(speaker.speaker), str(speaker.utterances), *rates)
    return table


def _headlines(result: Score) -> list[Metric]:
    return [metric for metric in result.rates if metric != "cer"]


def _length_table(result: Score, metric: Metric) -> Table:
    table = Table(title=f"{metric.upper()} by length of the reference", title_justify="left")
    for name in (f"{TOKEN_OF[metric]}s", "utterances", f"{metric.upper()} %"):
        table.add_column(name, justify="right")
    for group in by_length(result.utterances, metric):
        span = str(group.shortest) if group.shortest == group.longest else f"{group.shortest}–{group.longest}"
        table.add_row(span, str(group.utterances), _percent(group.counts))
    return table


def _print_confusions(console: Console, result: Score, metric: Metric, most: int) -> None:
    pairs = confusions([utterance.alignments[metric] for utterance in result.utterances])[:most]
    if pairs:
        shown = ", ".join(f"{pair.reference} → {pair.hypothesis} {pair.times}×" for pair in pairs)
        console.print(f"most frequent errors ({TOKEN_OF[metric]}s): {shown}", markup=False, highlight=False)
