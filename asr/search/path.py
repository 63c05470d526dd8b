"""What a search returns: labels with times, and words where the search knows words."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Word:
    """A recognised word and the tokens that it covers: `tokens[start:end]` of its utterance."""

    word: str
    start: int
    end: int


@dataclass(frozen=True)
class TokenPath:
    """The labels found in one utterance."""

    ids: list[int]
    frames: list[int]  # the frame in which each label starts
    ends: list[int]  # the frame after the last one of each label
    words: list[Word] | None = None  # None: the search gives labels alone
    score: float | None = field(default=None, compare=False)  # log score, where a search ranks hypotheses
    confidences: list[float] = field(default_factory=list, compare=False)  # of each label, 0 … 1
    alternatives: list["TokenPath"] = field(default_factory=list, compare=False)  # the next best, in order

    @property
    def text(self) -> str | None:
        """The words in a row."""
        return None if self.words is None else " ".join(word.word for word in self.words)

    @property
    def confidence(self) -> float:
        """Mean confidence of the labels; 0 where there are none."""
        return sum(self.confidences) / len(self.confidences) if self.confidences else 0.0
