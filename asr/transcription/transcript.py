"""Transcripts: words with times, grouped into segments for subtitles."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from asr.search.decoder import words_of
from asr.search.path import TimedWord, TokenPath, Word
from asr.text.tokenizer import Tokenizer

PAUSE_S = 0.7  # shortest pause that ends a segment
LINE_CHARACTERS = 42
LINES = 2
SEGMENT_S = 7.0


@dataclass(frozen=True)
class Segment:
    """Words without a long pause in between, at most two subtitle lines and seven seconds.

    Attributes:
        text: words of the segment.
        start_s, end_s: start and end in seconds.
        confidence: mean confidence of the words, 0 … 1.
        low_confidence: whether the confidence is below `min_confidence`.
        words: words with their times.
    """

    text: str
    start_s: float
    end_s: float
    confidence: float
    low_confidence: bool
    words: list[TimedWord]


@dataclass(frozen=True)
class Transcript:
    """Transcript of a recording, or of one channel.

    Attributes:
        text: recognised words, or labels if the search returns no words.
        tokens: recognised labels.
        times_s: start of each label in seconds.
        confidence: confidence of each label, 0 … 1.
        words: (word, start in seconds); None if the search returns no words.
        duration_s: duration of the recording in seconds.
        segments: words with start, end and confidence, split at pauses.
        mean_confidence: mean confidence of the labels, 0 … 1.
        low_confidence: whether the mean confidence is below `min_confidence`.
        channel: channel number, from 1; None: mono or the average of all channels.
    """

    text: str
    tokens: list[str]
    times_s: list[float]
    confidence: list[float]
    words: list[tuple[str, float]] | None
    duration_s: float
    segments: list[Segment] = field(default_factory=list)
    mean_confidence: float = 0.0
    low_confidence: bool = False
    channel: int | None = None


def timed_words(path: TokenPath, tokenizer: Tokenizer, frame_s: float) -> list[TimedWord]:
    """Return the words of a search result with their times, or its labels if it has no words.

    Args:
        path: labels with frames and confidences.
        tokenizer: tokenizer of the model.
        frame_s: duration of an encoder frame in seconds.
    """
    words = words_of(path, tokenizer)
    if words is None:
        words = [Word(symbol, i, i + 1) for i, symbol in enumerate(tokenizer.tokens(path.ids))]
    return path.timed(words, frame_s)


def split_segments(words: Sequence[TimedWord], min_confidence: float) -> list[Segment]:
    """Split words into segments at pauses, and before a segment exceeds two lines or seven seconds.

    Args:
        words: words in order.
        min_confidence: segments with a lower confidence are marked.
    """
    groups: list[list[TimedWord]] = []
    for word in words:
        if groups and _fits(groups[-1], word):
            groups[-1].append(word)
        else:
            groups.append([word])
    segments = []
    for group in groups:
        confidence = sum(word.confidence for word in group) / len(group)
        text = " ".join(word.word for word in group)
        segments.append(
            Segment(
                text,
                group[0].start_s,
                group[-1].end_s,
                round(confidence, 4),
                confidence < min_confidence,
                group,
            )
        )
    return segments


def _fits(group: Sequence[TimedWord], word: TimedWord) -> bool:
    return (
        word.start_s - group[-1].end_s < PAUSE_S
        and word.end_s - group[0].start_s <= SEGMENT_S
        # Wrapped as subtitles are, with all the marks that these may have.
        and len(subtitle_lines(f"- {' '.join(w.word for w in (*group, word))} [?]")) <= LINES
    )


def subtitle_lines(text: str) -> list[str]:
    """Break a text into lines of at most 42 characters; a longer word has its own."""
    return textwrap.wrap(text, LINE_CHARACTERS, break_long_words=False)
