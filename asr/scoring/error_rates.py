"""Error counts, error rates and their bootstrap intervals."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from asr.scoring.alignment import Edit, levenshtein
from asr.scoring.statistics import Estimate, Interval, bootstrap_interval


@dataclass(frozen=True)
class ErrorCounts:
    """Errors against a reference of `length` tokens; counts of several utterances add up."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    length: int = 0

    @classmethod
    def of(cls, edits: Iterable[Edit]) -> "ErrorCounts":
        """Count the operations of an alignment."""
        operations = [edit.operation for edit in edits]
        substitutions, deletions, insertions = (operations.count(kind) for kind in "SDI")  # type: ignore[arg-type]
        return cls(substitutions, deletions, insertions, len(operations) - insertions)

    @classmethod
    def between(cls, references: list[list[str]], hypotheses: list[list[str]]) -> "ErrorCounts":
        """Count the errors of a corpus of token sequences with unit costs: their sum is the edit distance."""
        alignment = levenshtein(references, hypotheses)
        length = alignment.hits + alignment.substitutions + alignment.deletions
        return cls(alignment.substitutions, alignment.deletions, alignment.insertions, length)

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
            self.length + other.length,
        )

    @property
    def errors(self) -> int:
        """Substitutions, deletions and insertions together."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per reference token; NaN without reference tokens."""
        return self.errors / self.length if self.length else float("nan")


@dataclass(frozen=True)
class ErrorRate:
    """An error rate (fraction) with its 95 % interval and its error counts.

    The interval is None for a single utterance, whose spread is unknown.
    """

    counts: ErrorCounts
    interval: Interval | None

    @property
    def rate(self) -> float:
        """Errors per reference token."""
        return self.counts.rate

    @property
    def estimate(self) -> Estimate:
        """The rate with its interval, for tables."""
        return Estimate.bootstrapped(self.rate, self.interval)

    def as_dict(self) -> dict[str, object]:
        """Return the entry of `score.json`."""
        return {"rate": self.rate, "interval": self.interval and list(self.interval), **asdict(self.counts)}


def error_rate(utterances: Sequence[ErrorCounts], *, samples: int = 1000, seed: int = 0) -> ErrorRate:
    """Pool the utterances' counts and estimate a bootstrap interval."""
    errors = np.array([counts.errors for counts in utterances])
    lengths = np.array([counts.length for counts in utterances])
    # The interval of a single utterance would be a point, as if its rate were certain.
    several = len(utterances) > 1
    interval = bootstrap_interval(errors, lengths, samples=samples, seed=seed) if several else None
    return ErrorRate(sum(utterances, ErrorCounts()), interval)
