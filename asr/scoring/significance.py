"""Whether two systems differ: matched pairs of sentence segments, and the bootstrap of the difference."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from asr.scoring.alignment import Edit
from asr.scoring.error_rates import Interval

GOOD_WORDS = 2  # correct in both systems, they end a segment (sc_stats' default)
LEVEL = 0.05


@dataclass(frozen=True)
class MatchedPairs:
    """The matched pairs sentence segment test (MAPSSWE).

    Attributes:
        segments: stretches with an error of either system.
        mean: of the difference in errors per segment, first system minus second.
        deviation: standard deviation of these differences, n − 1 in the denominator.
        z: mean over its standard error; 0 where all differences are equal.
        p: two-sided probability under the standard normal distribution.
    """

    segments: int
    mean: float
    deviation: float
    z: float
    p: float


@dataclass(frozen=True)
class Difference:
    """How much higher the first system's error rate is than the second's (fractions).

    Attributes:
        difference: of the pooled error rates.
        interval: 95 % of the bootstrap's differences.
        p: two-sided: twice the smaller share of resampled corpora on one side of zero.
    """

    difference: float
    interval: Interval
    p: float


@dataclass(frozen=True)
class Comparison:
    """Both tests of one metric for two systems on the same utterances."""

    matched_pairs: MatchedPairs
    bootstrap: Difference

    @property
    def significant(self) -> bool:
        """Whether MAPSSWE finds a difference at the 5 % level."""
        return self.matched_pairs.p < LEVEL

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def compare(
    first: Sequence[Sequence[Edit]], second: Sequence[Sequence[Edit]], *, samples: int = 1000, seed: int = 0
) -> Comparison:
    """Compare two systems.

    Args:
        first, second: the alignments of each utterance with the same reference, in the same order.
        samples: of the bootstrap.
        seed: of the bootstrap.
    """
    return Comparison(
        matched_pairs(first, second), bootstrap_difference(first, second, samples=samples, seed=seed)
    )


def matched_pairs(first: Sequence[Sequence[Edit]], second: Sequence[Sequence[Edit]]) -> MatchedPairs:
    """Test whether errors per segment differ: Gillick and Cox, *Some statistical issues in the comparison of
    speech recognition algorithms* (1989), as NIST's `sc_stats -t mapsswe` does it.

    A segment begins with an error of either system and ends where both have two words right, or with the
    utterance: errors in different segments are taken for independent. Unlike sc_stats this counts words that
    are inserted by the second system alone behind the last word of the reference.

    Args:
        first, second: alignments, as in `compare`.
    """
    counts = [
        segment for pair in zip(first, second, strict=True) for segment in segment_errors(pair[0], pair[1])
    ]
    differences = np.array([a - b for a, b in counts], dtype=float)
    n = len(differences)
    mean = float(differences.mean()) if n else 0.0
    deviation = float(differences.std(ddof=1)) if n > 1 else 0.0
    z = mean / (deviation / math.sqrt(n)) if deviation else 0.0
    return MatchedPairs(n, mean, deviation, z, math.erfc(abs(z) / math.sqrt(2)))


def segment_errors(first: Sequence[Edit], second: Sequence[Edit]) -> list[tuple[int, int]]:
    """Return the errors of both systems in each segment of one utterance.

    >>> from asr.scoring.alignment import align
    >>> words = "a b c d e f".split()
    >>> segment_errors(align(words, "x b c d e f".split()), align(words, "a b c d x".split()))
    [(1, 0), (0, 2)]
    """
    segments: list[tuple[int, int]] = []
    errors = [0, 0]
    good = 0
    for a, b in zip(_errors_by_word(first), _errors_by_word(second), strict=True):
        inserted = a.inserted_before or b.inserted_before
        right = not (a.wrong or b.wrong)
        errors[0] += a.inserted_before + a.wrong
        errors[1] += b.inserted_before + b.wrong
        good = (1 if inserted else good + 1) if right else 0
        if good >= GOOD_WORDS and any(errors):
            segments.append((errors[0], errors[1]))
            errors = [0, 0]
    if any(errors):
        segments.append((errors[0], errors[1]))
    return segments


def bootstrap_difference(
    first: Sequence[Sequence[Edit]], second: Sequence[Sequence[Edit]], *, samples: int = 1000, seed: int = 0
) -> Difference:
    """Resample utterances, the same for both systems: Bisani and Ney 2004, section 4.

    Args:
        first, second: alignments, as in `compare`.
        samples: number of resampled corpora.
        seed: of the resampling.

    Raises:
        ValueError: not one reference token.
    """
    lengths = np.array([sum(edit.operation != "I" for edit in edits) for edits in first])
    errors = [
        np.array([sum(edit.operation != "=" for edit in edits) for edits in system])
        for system in (first, second)
    ]
    more = errors[0] - errors[1]
    if not lengths.sum():
        raise ValueError("a difference of error rates needs at least one reference token")
    generator = np.random.default_rng(seed)
    block = max(1, min(samples, 4_000_000 // len(more)))  # holds the memory near 32 MiB
    resampled = []
    for start in range(0, samples, block):
        drawn = generator.integers(len(more), size=(min(block, samples - start), len(more)))
        drawn_lengths = lengths[drawn].sum(axis=1)
        kept = drawn_lengths > 0
        resampled.append(more[drawn].sum(axis=1)[kept] / drawn_lengths[kept])
    differences = np.concatenate(resampled)
    low, high = np.quantile(differences, [0.025, 0.975])
    p = min(1.0, 2 * min(float((differences <= 0).mean()), float((differences >= 0).mean())))
    return Difference(float(more.sum() / lengths.sum()), (float(low), float(high)), p)


@dataclass
class _Word:
    """A word of the reference, or its end: whether it was missed, and how many were inserted before it."""

    wrong: bool = False
    inserted_before: int = 0


def _errors_by_word(edits: Sequence[Edit]) -> list[_Word]:
    words = [_Word()]
    for edit in edits:
        if edit.operation == "I":
            words[-1].inserted_before += 1
        else:
            words[-1].wrong = edit.operation != "="
            words.append(_Word())
    return words
