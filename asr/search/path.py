"""The result of a search: labels with times, and words if the search has a lexicon."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from asr.text.tokenizer import PIECE_START, WORD_GAP, Tokenizer


@dataclass(frozen=True)
class Word:
    """A recognised word, which covers `tokens[start:end]` of its utterance."""

    word: str
    start: int
    end: int


@dataclass(frozen=True)
class TimedWord:
    """A word, or a label if the search returns no words, with its times and confidence.

    Attributes:
        word: the word or label.
        start_s, end_s: start and end in seconds.
        confidence: mean confidence of its labels, 0 … 1.
    """

    word: str
    start_s: float
    end_s: float
    confidence: float


@dataclass(frozen=True)
class TokenPath:
    """The labels recognised in an utterance."""

    ids: list[int]
    frames: list[int]  # start frame of each label
    ends: list[int]  # frame after the last frame of each label
    words: list[Word] | None = None  # None: the search returns labels only
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

    def timed(self, words: Sequence[Word], frame_s: float) -> list[TimedWord]:
        """Return words of this utterance with their times; an encoder frame lasts `frame_s` seconds."""
        return [
            TimedWord(
                word.word,
                round(self.frames[word.start] * frame_s, 3),
                round(self.ends[word.end - 1] * frame_s, 3),
                round(sum(self.confidences[word.start : word.end]) / (word.end - word.start), 4),
            )
            for word in words
        ]


NO_LABELS = TokenPath([], [], [])


def join_paths(paths: Sequence[TokenPath], starts: Sequence[int] | None = None) -> TokenPath:
    """Join the paths of successive stretches; `starts`: frame at which each begins, None: always 0."""
    if len(paths) == 1:
        return paths[0]
    words: list[Word] = []
    tokens = 0
    for path in paths:
        words += [Word(word.word, word.start + tokens, word.end + tokens) for word in path.words or []]
        tokens += len(path.ids)
    return TokenPath(
        ids=[index for path in paths for index in path.ids],
        frames=[
            frame + start
            for path, start in zip(paths, starts or itertools.repeat(0), strict=False)
            for frame in path.frames
        ],
        confidences=[x for path in paths for x in path.confidences],
        words=None if paths[0].words is None else words,
        ends=[
            end + start
            for path, start in zip(paths, starts or itertools.repeat(0), strict=False)
            for end in path.ends
        ],
    )


def shifted(path: TokenPath, frames: int) -> TokenPath:
    """Return a path shifted by a number of frames."""
    return replace(path, frames=[x + frames for x in path.frames], ends=[x + frames for x in path.ends])


def part(path: TokenPath, start: int, end: int) -> TokenPath:
    """Return the labels `start` … `end` − 1 of a path without words."""
    labels = slice(start, end)
    return TokenPath(
        path.ids[labels], path.frames[labels], path.ends[labels], confidences=path.confidences[labels]
    )


def text_of(path: TokenPath, tokenizer: Tokenizer) -> str | None:
    """Return the words that the search found or that the labels spell; None for phones without words."""
    return tokenizer.text(path.ids) if path.words is None else path.text


def words_of(path: TokenPath, tokenizer: Tokenizer) -> list[Word] | None:
    """Return the words, each with the labels it covers; None for phones without words."""
    if path.words is not None or tokenizer.unit == "phone":
        return path.words
    characters = tokenizer.unit == "character"
    words: list[Word] = []
    start = 0
    for position, symbol in enumerate([*tokenizer.tokens(path.ids), None]):
        gap = characters and symbol == WORD_GAP
        if symbol is None or gap or (not characters and symbol.startswith(PIECE_START)):
            if text := tokenizer.text(path.ids[start:position]):
                words.append(Word(text, start, position))
            start = position + gap
    return words
