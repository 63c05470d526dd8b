"""Recall and false alarms of some words, such as names, and the word error rate of all others."""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass

from asr.console import counted
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.score import UtteranceScore
from asr.scoring.statistics import DASH, percent


@dataclass(frozen=True)
class ListedWords:
    """How the words of a list were recognised.

    Attributes:
        spoken: number of times that they were said.
        recognised: number of times that they were said and recognised.
        false_alarms: number of times that they were recognised where another word or nothing was said.
        others: errors of all other words; a false alarm in place of another word is a substitution.
    """

    spoken: int
    recognised: int
    false_alarms: int
    others: ErrorCounts

    @classmethod
    def of(cls, utterances: Iterable[UtteranceScore], words: Collection[str]) -> "ListedWords":
        """Count the words of a list in the word alignments of utterances."""
        edits = [edit for utterance in utterances for edit in utterance.alignments["wer"]]
        listed = [edit for edit in edits if edit.reference in words]
        right = sum(edit.operation == "=" for edit in listed)
        wrong = sum(edit.operation != "=" and edit.hypothesis in words for edit in edits)
        others = [edit for edit in edits if (edit.reference or edit.hypothesis) not in words]
        return cls(len(listed), right, wrong, ErrorCounts.of(others))

    def __str__(self) -> str:
        recall = percent(self.recognised / self.spoken) if self.spoken else DASH
        return (
            f"recall {recall} % ({self.recognised} of {self.spoken}), "
            f"{counted(self.false_alarms, 'false alarm')}; WER of other "
            f"words {percent(self.others.rate) if self.others.length else DASH} % "
            f"({self.others.errors} of {self.others.length})"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the entry of `score.json`."""
        return asdict(self)
