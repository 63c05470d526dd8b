"""The result of a search: labels with times, and words if the search has a lexicon."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Word:
    """A recognised word, which covers `tokens[start:end]` of its utterance."""

    word: str
    start: int
    end: int


@dataclass(frozen=True)
class TokenPath:
    """The labels found in one utterance."""

    ids: list[int]
    frames: list[int]  # start frame of each label
    ends: list[int]  # frame after the last one of each label
    words: list[Word] | None = None  # None: the search returns only labels
    score: float | None = field(default=None, compare=False)  # log score if the search ranks hypotheses
    confidences: list[float] = field(default_factory=list, compare=False)  # confidence of each label, 0 … 1
    alternatives: list["TokenPath"] = field(default_factory=list, compare=False)  # next best, in order

    @property
    def text(self) -> str | None:
        """The words, joined by spaces."""
        return None if self.words is None else " ".join(word.word for word in self.words)

    @property
    def confidence(self) -> float:
        """Mean confidence of the labels; 0 where there are none."""
        return sum(self.confidences) / len(self.confidences) if self.confidences else 0.0
