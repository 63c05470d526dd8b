"""Prints scores: rates with intervals, speakers, worst utterances, comparison of systems."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from asr.console import Table, counted
from asr.scoring.alignment import render
from asr.scoring.error_rates import ErrorCounts, ErrorRate
from asr.scoring.score import TOKEN_OF, Metric, Score, by_length, confusions
from asr.scoring.significance import PairedScores
from asr.scoring.statistics import DASH, percent

MOST_FREQUENT, WORST = 10, 5  # errors and utterances shown; the files beside score.json have all


def counts_line(counts: ErrorCounts) -> str:
    """Return substitutions, deletions, insertions and the error rate on one line."""
    return (
        f"S {counts.substitutions}, D {counts.deletions}, I {counts.insertions} of {counts.length} "
        f"= {_percent(counts)} %"
    )


def _percent(counts: ErrorCounts) -> str:
    return percent(counts.rate) if counts.length else DASH


def rate_cells(rate: ErrorRate) -> list[str]:
    """Return rate and 95 % interval in % (empty if unknown), substitutions, deletions and insertions."""
    counts = rate.counts
    errors = (counts.substitutions, counts.deletions, counts.insertions)
    return [percent(rate.rate), rate.estimate.ends(percent), *map(str, errors)]


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return the last components of each path: at least split and system, and as many as make it distinct."""
    parts = [folder.absolute().parts for folder in folders]
    for count in range(2, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return ["/".join(part) for part in parts]


def print_comparison(console: Console, names: Sequence[str], scores: Sequence[Score]) -> None:
    """Print one row per system: its rates with 95 % intervals, and its real-time factor.

    Names that are too long for the table are numbered and printed above it.
    """
    table = _comparison_table(names, scores)
    if console.measure(table, options=console.options.update(width=10_000)).maximum > console.width:
        numbers = [str(number) for number in range(1, len(names) + 1)]
        for number, name in zip(numbers, names, strict=True):
            console.print(f"{number}  {name}", soft_wrap=True, markup=False, highlight=False)
        table = _comparison_table(numbers, scores)
    console.print(table)


def _comparison_table(systems: Sequence[str], scores: Sequence[Score]) -> Table:
    metrics = list(dict.fromkeys(metric for x in scores for metric in x.shown))
    rows = []
    for name, result in zip(systems, scores, strict=True):
        rates = [result.rates.get(metric) for metric in metrics]
        cells = [rate.estimate.text(percent) if rate else DASH for rate in rates]
        factor = result.real_time_factor
        if result.known_words and result.known_words.closed:
            name += " (closed vocabulary)"
        rows.append((name, *cells, DASH if factor is None else f"{factor:.3f}"))
    names = ("system", *(metric.upper() for metric in metrics), "RTF")
    return Table.of("Error rates in %, with 95 % intervals", names, rows, wrap=False)


def print_score(console: Console, folder: Path, result: Score, *, details: bool = True) -> None:
    """Print one system's rates and its most frequent errors.

    With details, also print its rates by speaker and by length, and the worst utterances.
    """
    console.print(_rate_table(folder, result))
    speed = ""
    if result.real_time_factor is not None:
        speed = f", decoded in {result.decode_s:.1f} s (real-time factor {result.real_time_factor:.3f})"
    audio = f", {result.audio_s:.1f} s of audio" if result.audio_s else ""
    costs = {"unit": "unit costs", "sclite": "sclite's costs"}[result.alignment]
    utterances = counted(len(result.utterances), "utterance")
    console.print(f"{utterances}{audio}{speed}, aligned with {costs}", highlight=False)
    if (words := result.pronunciations) and words.words > words.model:
        console.print(str(words), soft_wrap=True, highlight=False)
    # The speaker of an utterance without one is `unknown`, or in prepared data its id.
    if details and any(x.speaker not in ("unknown", x.id) for x in result.utterances):
        console.print(_speaker_table(result))
    elif details:
        console.print("no rates by speaker: the data name no speakers", highlight=False)
    for metric in result.headlines:
        if details:
            console.print(_length_table(result, metric))
        pairs = confusions(result.utterances, metric)[:MOST_FREQUENT]
        if pairs:
            shown = ", ".join(f"{pair.reference} → {pair.hypothesis} {pair.times}×" for pair in pairs)
            line = f"most frequent errors ({TOKEN_OF[metric]}s): {shown}"
            console.print(line, markup=False, highlight=False)
    if not details:
        console.print("details=true prints speakers, lengths and the worst utterances", highlight=False)
        return
    console.print("[bold]Worst utterances[/]")
    for entry in result.utterances[:WORST]:
        for metric in result.headlines:
            counts = counts_line(entry.counts[metric])
            console.print(f"[bold]{escape(entry.id)}[/]  {metric.upper()}  {counts}", highlight=False)
            console.print(render(entry.alignments[metric], console.width), soft_wrap=True, highlight=False)


def _rate_table(folder: Path, result: Score) -> Table:
    # Phone error rates are comparable only with the same lexicon.
    caption = f"PER with lexicon {result.lexicon}" if "per" in result.rates and result.lexicon else ""
    names = ("", "rate %", "95 % interval", "sub", "del", "ins", "of")
    rows = [
        (metric.upper(), *rate_cells(rate), f"{rate.counts.length} {TOKEN_OF[metric]}s")
        for metric, rate in result.rates.items()
    ]
    if result.known_words and "wer" in result.rates:
        caption = "\n".join(filter(None, [caption, str(result.known_words)]))
    return Table.of(str(folder), names, rows, caption=caption, wrap=False)


def _speaker_table(result: Score) -> Table:
    rows = [
        (
            speaker.speaker,
            str(speaker.utterances),
            *(_percent(speaker.counts[metric]) for metric in result.rates),
        )
        for speaker in result.speakers
    ]
    names = ("speaker", "utterances", *(f"{metric.upper()} %" for metric in result.rates))
    return Table.of("By speaker", names, rows)


def _length_table(result: Score, metric: Metric) -> Table:
    rows = []
    for group in by_length(result.utterances, metric):
        span = str(group.shortest) if group.shortest == group.longest else f"{group.shortest}–{group.longest}"
        rows.append((span, str(group.utterances), _percent(group.counts)))
    names = (f"{TOKEN_OF[metric]}s", "utterances", f"{metric.upper()} %")
    return Table.of(f"{metric.upper()} by reference length", names, rows)


def print_pairs(console: Console, pairs: Sequence[PairedScores]) -> None:
    """Print the significance tests of systems against the first."""
    for pair in pairs:
        title = f"{pair.second} against {pair.first}"
        if pair.why_none:
            console.print(f"{title}: no significance test, {pair.why_none}", markup=False, highlight=False)
            continue
        console.print(title, style="bold", markup=False, highlight=False)
        for metric, test in pair.tests.items():
            # The tests compute first minus second; the change from the first to the second is shown.
            bootstrap, matched = test.bootstrap, test.matched_pairs
            low, high = (0.0 - 100 * x for x in reversed(bootstrap.interval))
            verdict = "no significant difference at 5 %"
            if test.significant:
                more = matched.mean if matched else bootstrap.difference
                verdict = "significantly " + ("better" if more > 0 else "worse")
            text = (
                f"  {metric.upper()} {0.0 - 100 * bootstrap.difference:+.2f} points "
                f"(95 % bootstrap interval {low:+.2f} to {high:+.2f}, {_p(bootstrap.p)})"
            )
            if matched:
                segments = f"z = {matched.z:.3f} over {counted(matched.segments, 'segment')}"
                text += f"\n  matched pairs: {_p(matched.p)}, {segments}"
            console.print(f"{text}: {verdict}", markup=False, highlight=False)


def _p(value: float) -> str:
    return f"p = {value:.3f}" if value >= 0.001 else "p < 0.001"
