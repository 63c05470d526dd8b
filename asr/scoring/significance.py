"""Whether two systems differ: matched pairs of sentence segments, and the bootstrap of the difference."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from asr.errors import UserError
from asr.scoring.alignment import Edit
from asr.scoring.score import TOKEN_OF, Metric, Score
from asr.scoring.statistics import BootstrapTest, bootstrap_test
from asr.scoring.trn import check_same_ids

GOOD_WORDS = 2  # consecutive words right in both systems that end a segment (sc_stats' default)


@dataclass(frozen=True)
class MatchedPairs:
    """Result of the matched pairs sentence segment word error test (MAPSSWE).

    Attributes:
        segments: number of segments with an error of either system.
        mean: mean difference in errors per segment, first system minus second.
        deviation: standard deviation of these differences, with n − 1 in the denominator.
        z: mean divided by its standard error; 0 if all differences are equal.
        p: two-sided p-value under the standard normal distribution; that of the sign test if all differences
            are equal and not 0.
    """

    segments: int
    mean: float
    deviation: float
    z: float
    p: float


@dataclass(frozen=True)
class PairedTests:
    """The tests of two systems for one metric; matched pairs apply to words and phones, not characters."""

    matched_pairs: MatchedPairs | None
    bootstrap: BootstrapTest

    @property
    def significant(self) -> bool:
        """Whether MAPSSWE, or the bootstrap without it, finds a difference at the 5 % level."""
        return (self.matched_pairs or self.bootstrap).p < 0.05


@dataclass(frozen=True)
class PairedScores:
    """Tests between two systems by metric, or the reason for having none."""

    first: str
    second: str
    tests: dict[Metric, PairedTests]
    why_none: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the tests as plain data."""
        tests: dict[str, Any] = {metric: asdict(test) for metric, test in self.tests.items()}
        return {"first": self.first, "second": self.second, "why_none": self.why_none, **tests}


def compare_systems(
    names: Sequence[str], scores: Sequence[Score], *, samples: int = 1000, seed: int = 0
) -> list[PairedScores]:
    """Compare every system with the first one that recognised the same utterances.

    A system that shares only some utterances with an earlier one gets a list of the others instead of a
    test. A system that shares none, as on another split, starts a new group.
    """
    return [
        _pair(names[first], scores[first], names[other], scores[other], samples=samples, seed=seed)
        for first, *others in group_systems([{utterance.id for utterance in x.utterances} for x in scores])
        for other in others
    ]


def group_systems(utterances: Sequence[set[str]]) -> list[list[int]]:
    """Group systems by the ids of their utterances: all in a group share utterances with its first system.

    Example:
        >>> group_systems([{"a", "b"}, {"c"}, {"b"}])
        [[0, 2], [1]]
    """
    groups: list[list[int]] = []
    for index, idents in enumerate(utterances):
        group = next((group for group in groups if idents & utterances[group[0]]), None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    return groups


def _pair(first: str, one: Score, second: str, other: Score, *, samples: int, seed: int) -> PairedScores:
    firsts = {utterance.id: utterance for utterance in one.utterances}
    seconds = {utterance.id: utterance for utterance in other.utterances}
    try:
        # Error rates on different utterances must not be compared.
        check_same_ids(firsts, seconds, first, second)
    except UserError as error:
        return PairedScores(first, second, {}, str(error))
    if len(firsts) == 1:
        return PairedScores(first, second, {}, "because one utterance has no spread")
    tests: dict[Metric, PairedTests] = {}
    for metric in (metric for metric in one.rates if metric in other.rates):
        if metric == "cer" and "per" in tests:
            continue  # phone models have words only from a lexicon, so CER adds nothing to WER
        lefts, rights = [], []
        for ident in sorted(firsts):
            left, right = firsts[ident].alignments[metric], seconds[ident].alignments[metric]
            if _reference(left) != _reference(right):
                reason = f"the references of utterance {ident!r} differ in their {TOKEN_OF[metric]}s"
                return PairedScores(first, second, {}, reason)
            lefts.append(left)
            rights.append(right)
        bootstrap = bootstrap_difference(lefts, rights, samples=samples, seed=seed)
        tests[metric] = PairedTests(matched_pairs(lefts, rights) if metric != "cer" else None, bootstrap)
    why = "" if tests else "they have no metric in common"
    return PairedScores(first, second, tests, why)


def _reference(edits: Sequence[Edit]) -> list[str]:
    return [edit.reference for edit in edits if edit.reference is not None]


def matched_pairs(first: Sequence[Sequence[Edit]], second: Sequence[Sequence[Edit]]) -> MatchedPairs:
    """Test whether errors per segment differ: Gillick and Cox, *Some statistical issues in the comparison of
    speech recognition algorithms* (1989), as implemented by NIST's `sc_stats -t mapsswe`.

    A segment starts at an error of either system and ends once both have two consecutive words right, or
    with the utterance. Errors in different segments are assumed to be independent. Unlike sc_stats, this
    counts words inserted after the last reference word by the second system alone.

    Args:
        first, second: alignment of each utterance with the same reference, in the same order.
    """
    counts = [
        segment for pair in zip(first, second, strict=True) for segment in segment_errors(pair[0], pair[1])
    ]
    differences = np.array([a - b for a, b in counts], dtype=float)
    n = len(differences)
    mean = float(differences.mean()) if n else 0.0
    deviation = float(differences.std(ddof=1)) if n > 1 else 0.0
    z = mean / (deviation / math.sqrt(n)) if deviation else 0.0
    if mean and not deviation:  # equal differences: the sign test
        return MatchedPairs(n, mean, deviation, z, 2.0 ** (1 - n))
    return MatchedPairs(n, mean, deviation, z, math.erfc(abs(z) / math.sqrt(2)))


def segment_errors(first: Sequence[Edit], second: Sequence[Edit]) -> list[tuple[int, int]]:
    """Return the errors of both systems in each segment of one utterance.

    >>> from asr.scoring.alignment import align_sclite
    >>> words = "a b c d e f".split()
    >>> segment_errors(align_sclite(words, "x b c d e f".split()), align_sclite(words, "a b c d x".split()))
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


@dataclass
class _Word:
    """A reference word, or the end of the reference: whether it is wrong, and the insertions before it."""

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


def bootstrap_difference(
    first: Sequence[Sequence[Edit]], second: Sequence[Sequence[Edit]], *, samples: int = 1000, seed: int = 0
) -> BootstrapTest:
    """Bootstrap the difference, drawing the same utterances for both systems: Bisani and Ney 2004.

    Args:
        first, second: alignments, as in `matched_pairs`.
        samples: number of resampled corpora.
        seed: random seed for the resampling.

    Raises:
        ValueError: there is no reference token.
    """
    lengths = np.array([sum(edit.operation != "I" for edit in edits) for edits in first])
    errors = [
        np.array([sum(edit.operation != "=" for edit in edits) for edits in system])
        for system in (first, second)
    ]
    return bootstrap_test(errors[0] - errors[1], lengths, samples=samples, seed=seed)
