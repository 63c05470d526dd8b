"""Where the errors are: by length of the reference, and which tokens are taken for which."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asr.scoring.alignment import Edit
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.score import Metric, UtteranceScore

NOTHING = "∅"  # the partner of a deleted or inserted token
GROUPS = 5


@dataclass(frozen=True)
class LengthScore:
    """The pooled errors of the utterances whose references have `shortest` … `longest` tokens."""

    shortest: int
    longest: int
    utterances: int
    counts: ErrorCounts


@dataclass(frozen=True)
class Confusion:
    """How often a token of the reference was recognised as another one, missed or invented."""

    reference: str
    hypothesis: str
    times: int


def by_length(
    utterances: Sequence[UtteranceScore], metric: Metric, groups: int = GROUPS
) -> list[LengthScore]:
    """Group utterances by the length of their references, short to long, into groups of about one size."""
    counts = sorted((utterance.counts[metric] for utterance in utterances), key=lambda x: x.length)
    lengths = np.array([x.length for x in counts])
    # Utterances of one length stay together.
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, groups + 1)[1:], method="higher"))
    result, start = [], 0
    for edge in edges:
        end = int(np.searchsorted(lengths, edge, side="right"))
        if end > start:
            own = counts[start:end]
            result.append(LengthScore(own[0].length, own[-1].length, len(own), sum(own, ErrorCounts())))
        start = end
    return result


def confusions(alignments: Sequence[Sequence[Edit]]) -> list[Confusion]:
    """Count the pairs of tokens that differ, most frequent first, then by name."""
    counter = Counter(
        (edit.reference or NOTHING, edit.hypothesis or NOTHING)
        for edits in alignments
        for edit in edits
        if edit.operation != "="
    )
    ordered = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return [Confusion(*pair, times) for pair, times in ordered]
