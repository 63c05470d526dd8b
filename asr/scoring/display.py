"""Scores on the terminal: rates with intervals, speakers, the worst utterances, systems side by side."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asr.scoring.alignment import render
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


def print_comparison(console: Console, folders: Sequence[Path], scores: Sequence[Score]) -> None:
    """Print one row for each system: its rates with 95 % intervals, and its real-time factor."""
    metrics = [metric for metric in METRICS if metric != "cer" and any(metric in x.rates for x in scores)]
    table = Table("split", "system", title="Error rates in %, with 95 % intervals", title_justify="left")
    for metric in metrics:
        table.add_column(metric.upper(), justify="right", no_wrap=True)
    table.add_column("RTF", justify="right", no_wrap=True)
    for folder, result in zip(folders, scores, strict=True):
        cells = [_rate_and_interval(result, metric) for metric in metrics]
        factor = f"{result.decode_s / result.audio_s:.3f}" if result.decode_s and result.audio_s else "–"
        table.add_row(escape(folder.parent.name), escape(folder.name), *cells, factor)
    console.print(table)


def _rate_and_interval(result: Score, metric: Metric) -> str:
    if metric not in result.rates:
        return "–"
    rate = result.rates[metric]
    low, high = rate.interval
    return f"{100 * rate.rate:.2f} ({100 * low:.2f} … {100 * high:.2f})"


def print_score(console: Console, folder: Path, result: Score, worst: int) -> None:
    """Print the rates of one system, its speakers and its worst utterances."""
    console.print(_rate_table(folder, result))
    speed = ""
    if result.decode_s is not None and result.audio_s > 0:
        factor = result.decode_s / result.audio_s
        speed = f", decoded in {result.decode_s:.1f} s (real-time factor {factor:.3f})"
    console.print(
        f"{len(result.utterances)} utterances, {result.audio_s:.1f} s of audio{speed}", highlight=False
    )
    console.print(_speaker_table(result))
    if worst > 0:
        console.print("[bold]Worst utterances[/]")
    for entry in result.utterances[: max(worst, 0)]:
        for metric in shown_metrics(entry):
            counts = counts_line(entry.counts[metric])
            console.print(f"[bold]{escape(entry.id)}[/]  {metric.upper()}  {counts}", highlight=False)
            console.print(render(entry.alignments[metric], console.width), soft_wrap=True, highlight=False)
    console.print(f"score.json, alignments.txt, speakers.tsv: {escape(str(folder))}", soft_wrap=True)


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
