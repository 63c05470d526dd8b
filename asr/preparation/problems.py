"""Problems with a corpus: their kinds, some of which a user may accept, and a list of them."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from asr.text.files import write_table

# Accepted kinds are left out of the data and listed.
KINDS = {
    "missing_audio": "audio that is listed or transcribed, but not there",
    "truncated_audio": "empty audio files, and files with fewer samples than their headers state",
    "damaged_audio": "audio that can't be read, or has other rates or channels than expected",
    "missing_text": "audio without a transcript",
    "damaged_text": "lines of transcripts, tables and indices that can't be read",
    "missing_parts": "discs, indices, language models, and splits without utterances",
    "duplicates": "ids, lines and files that appear twice",
    "times": "utterances outside their audio",
    "counts": "numbers of files, utterances or words other than the official ones",
}
PARTIAL_HELP = f"kinds of problems to accept; affected items are left out and listed ({', '.join(KINDS)})"


class Problem(NamedTuple):
    """Bad input: the kind, and a message that names file or utterance, the expectation and the finding."""

    kind: str
    message: str


def count_kinds(problems: Iterable[Problem]) -> dict[str, int]:
    """Return the number of problems of each kind, in the order of `KINDS`."""
    counts = Counter(problem.kind for problem in problems)
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


def describe_kinds(counts: dict[str, int]) -> str:
    """Return the counts in words.

    >>> describe_kinds({"missing_audio": 3, "counts": 1})
    '3 × missing_audio, 1 × counts'
    """
    return ", ".join(f"{count:,} × {kind}" for kind, count in counts.items())


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Write a table with a row per problem: kind and message."""
    write_table(path, ["kind", "problem"], problems)
