"""Systems side by side: each against the first one that recognised the same utterances."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from asr.errors import UserError
from asr.scoring.alignment import Edit
from asr.scoring.score import METRICS, TOKEN_OF, Metric, Score
from asr.scoring.significance import Comparison, compare
from asr.scoring.trn import check_same_ids


@dataclass(frozen=True)
class PairedScores:
    """Tests between two systems, by metric; or why there are none."""

    first: str
    second: str
    tests: dict[Metric, Comparison]
    why_none: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        tests: dict[str, Any] = {metric: test.as_dict() for metric, test in self.tests.items()}
        return {"first": self.first, "second": self.second, "why_none": self.why_none, **tests}


def compare_systems(
    names: Sequence[str], scores: Sequence[Score], *, samples: int = 1000, seed: int = 0
) -> list[PairedScores]:
    """Compare every system with the first one of the same utterances.

    A system that shares utterances with an earlier one, but not all of them, gets the list of the others
    instead of a test; one that shares none (another split) starts a group of its own.
    """
    baselines: list[int] = []
    pairs = []
    for index, result in enumerate(scores):
        idents = {utterance.id for utterance in result.utterances}
        shared = next(
            (b for b in baselines if idents & {utterance.id for utterance in scores[b].utterances}), None
        )
        if shared is None:
            baselines.append(index)
        else:
            pairs.append(
                _pair(names[shared], scores[shared], names[index], result, samples=samples, seed=seed)
            )
    return pairs


def print_pairs(console: Console, pairs: Sequence[PairedScores]) -> None:
    """Print a block of lines for each pair of systems."""
    for pair in pairs:
        for line, bold in _lines(pair):
            console.print(line, style="bold" if bold else None, markup=False, highlight=False)


def _lines(pair: PairedScores) -> list[tuple[str, bool]]:
    if pair.why_none:
        return [(f"{pair.second} against {pair.first}: no significance test, {pair.why_none}", False)]
    lines = [(f"{pair.second} against {pair.first}", True)]
    for metric, test in pair.tests.items():
        low, high = (0.0 - 100 * x for x in reversed(test.bootstrap.interval))
        lines.append(
            (
                f"  {metric.upper()} {0.0 - 100 * test.bootstrap.difference:+.2f} points "
                f"(95 % bootstrap interval {low:+.2f} … {high:+.2f}, {_p(test.bootstrap.p)})",
                False,
            )
        )
        pairs = test.matched_pairs
        lines.append(
            (
                f"  matched pairs: {_p(pairs.p)}, z = {pairs.z:.3f} over {pairs.segments} segments: "
                f"{_verdict(test)}",
                False,
            )
        )
    return lines


def _p(value: float) -> str:
    return f"p = {value:.3f}" if value >= 0.001 else "p < 0.001"


def _verdict(test: Comparison) -> str:
    if not test.significant:
        return "no significant difference at 5 %"
    return "significantly " + ("better" if test.matched_pairs.mean > 0 else "worse")


def _pair(first: str, one: Score, second: str, other: Score, *, samples: int, seed: int) -> PairedScores:
    try:
        check_same_ids(
            (utterance.id for utterance in one.utterances),
            (utterance.id for utterance in other.utterances),
            first,
            second,
        )
    except UserError as error:
        return PairedScores(first, second, {}, str(error))
    position = {utterance.id: utterance for utterance in other.utterances}
    tests: dict[Metric, Comparison] = {}
    for metric in METRICS:
        if metric == "cer" or metric not in one.rates or metric not in other.rates:
            continue
        alignments = [
            (utterance.alignments[metric], position[utterance.id].alignments[metric])
            for utterance in sorted(one.utterances, key=lambda utterance: utterance.id)
        ]
        for (left, right), ident in zip(alignments, sorted(position), strict=True):
            if _spoken(left) != _spoken(right):
                reason = f"the references of utterance {ident!r} differ in their {TOKEN_OF[metric]}s"
                return PairedScores(first, second, {}, reason)
        lefts, rights = zip(*alignments, strict=True)
        tests[metric] = compare(lefts, rights, samples=samples, seed=seed)
    why = "" if tests else "they have no metric in common but CER"
    return PairedScores(first, second, tests, why)


def _spoken(edits: Sequence[Edit]) -> list[str]:
    return [edit.reference for edit in edits if edit.reference is not None]
