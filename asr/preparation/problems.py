"""Problems with a corpus: their kinds, some of which a user may accept, and their list."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from asr.preparation.options import KINDS
from asr.text.files import write_table


class Problem(NamedTuple):
    """Bad input: its kind, and a message with file or utterance, what was expected and what was found."""

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
