"""Transcripts: words with times, grouped into segments for subtitles."""

import logging
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from asr.search.path import TimedWord, TokenPath, Word, text_of, words_of
from asr.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

PAUSE_S = 0.7  # shortest pause that ends a segment
# Subtitling guides allow two lines of 42 characters (Netflix's Timed Text Style Guide), for seven seconds.
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


Outcome = list[Transcript] | Exception  # the transcripts of a recording's channels, or its error


def transcript_of(
    path: TokenPath,
    tokenizer: Tokenizer,
    *,
    frame_s: float,
    duration_s: float,
    min_confidence: float,
    name: str,
    channel: int | None = None,
) -> Transcript:
    """Return the transcript of a search result; warn about low confidence.

    Args:
        path: labels with frames and confidences.
        tokenizer: tokenizer of the model.
        frame_s: duration of an encoder frame in seconds.
        duration_s: duration of the recording in seconds.
        min_confidence: confidence below which the recording and segments are marked.
        name: name of the recording in messages.
        channel: channel number, from 1; None: mono or the average of all channels.
    """
    tokens = tokenizer.tokens(path.ids)
    times_s = [round(frame * frame_s, 3) for frame in path.frames]
    text = text_of(path, tokenizer)
    if path.confidence < min_confidence:
        log.warning(
            "%s: low confidence (%.2f, below %.2f): the audio may be unlike the training data",
            name,
            path.confidence,
            min_confidence,
        )
    return Transcript(
        text=" ".join(tokens) if text is None else text,
        tokens=tokens,
        times_s=times_s,
        confidence=[round(x, 4) for x in path.confidences],
        words=None if path.words is None else [(word.word, times_s[word.start]) for word in path.words],
        duration_s=duration_s,
        segments=split_segments(timed_words(path, tokenizer, frame_s), min_confidence),
        mean_confidence=round(path.confidence, 4),
        low_confidence=path.confidence < min_confidence,
        channel=channel,
    )


def silent_transcript(duration_s: float, name: str, channel: int | None = None) -> Transcript:
    """Return the transcript of a silent recording, with a warning; see `transcript_of`."""
    log.warning("%s: the recording is silent", name)
    return Transcript("", [], [], [], [], duration_s, low_confidence=True, channel=channel)


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
