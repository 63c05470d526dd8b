"""Writes the files beside a score: alignments, and tables by speaker, length and confusion."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr.files import write_text
from asr.scoring.alignment import render
from asr.scoring.display import counts_line
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.score import Metric, Score, UtteranceScore, by_length, confusions
from asr.text.files import write_table

FIELDS = ("rate", "errors", "substitutions", "deletions", "insertions", "length")


def write_tables(folder: Path, result: Score) -> None:
    """Write the files `TABLES` of a score into a folder."""
    write_text(
        "\n".join(_alignment_text(entry, result.headlines) for entry in result.utterances),
        folder / "alignments.txt",
    )
    for name, rows in _tables(result).items():
        write_table(folder / name, rows[0], rows[1:])


def _alignment_text(entry: UtteranceScore, metrics: Sequence[Metric]) -> str:
    lines = [f"{entry.id}  speaker {entry.speaker}"]
    for metric in metrics:
        lines.append(f"{metric.upper()}  {counts_line(entry.counts[metric])}")
        lines.append(render(entry.alignments[metric]).plain)
    return "\n".join(lines) + "\n"


def _tables(result: Score) -> dict[str, list[list[Any]]]:
    """Return the rows of each table by file name, column names first."""
    names = [f"{metric}_{name}" for metric in result.rates for name in FIELDS]
    speakers: list[list[Any]] = [["speaker", "utterances", *names]]
    for speaker in result.speakers:
        values = [value for metric in result.rates for value in _values(speaker.counts[metric])]
        speakers.append([speaker.speaker, speaker.utterances, *values])
    lengths: list[list[Any]] = [["metric", "shortest", "longest", "utterances", *FIELDS]]
    errors: list[list[Any]] = [["metric", "times", "reference", "hypothesis"]]
    for metric in result.rates:
        for group in by_length(result.utterances, metric):
            span = (group.shortest, group.longest)
            lengths.append([metric, *span, group.utterances, *_values(group.counts)])
        for pair in confusions(result.utterances, metric):
            errors.append([metric, pair.times, pair.reference, pair.hypothesis])
    return {"speakers.tsv": speakers, "lengths.tsv": lengths, "confusions.tsv": errors}


def _values(counts: ErrorCounts) -> list[Any]:
    return [getattr(counts, name) for name in FIELDS]
