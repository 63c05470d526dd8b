"""Transcripts: words with times, grouped into segments for subtitles."""

import logging
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

from asr.search.path import TimedWord, TokenPath, Word, text_of, words_of
from asr.text.tokenizer import Tokenizer
from asr.text.unspaced import is_unspaced, units

log = logging.getLogger(__name__)

PAUSE_S = 0.7  # shortest pause that ends a segment
# Subtitling guides allow two lines of 42 characters for seven seconds (Netflix's Timed Text Style Guide).
LINE_CHARACTERS = 42
LINES = 2
SEGMENT_S = 7.0


@dataclass(frozen=True)
class Segment:
    """Words without a long pause between them, at most two subtitle lines and seven seconds.

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
    """Return the transcript of a search result; warn if it is empty or has a low confidence.

    Args:
        path: labels with frames and confidences.
        tokenizer: tokenizer of the model.
        frame_s: duration of an encoder frame in seconds.
        duration_s: duration of the recording in seconds.
        min_confidence: confidence below which the recording and its segments are marked.
        name: name of the recording in messages.
        channel: channel number, from 1; None: mono or the average of all channels.
    """
    tokens = tokenizer.tokens(path.ids)
    times_s = [round(frame * frame_s, 3) for frame in path.frames]
    text = text_of(path, tokenizer)
    if not path.ids and path.confidence < min_confidence:
        log.warning("%s: nothing recognised", name)
    elif path.confidence < min_confidence:
        log.warning(
            "%s: low confidence (%.2f, below %.2f): audio unlike the training data, or a weak model",
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
        segments=split_segments(*_breakable(path, tokenizer, frame_s), min_confidence=min_confidence),
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


def _breakable(path: TokenPath, tokenizer: Tokenizer, frame_s: float) -> tuple[list[TimedWord], set[int]]:
    """Return timed words; a long word in a script without spaces is replaced by its labels, to be broken up.

    Returns:
        Words and labels in order, and the positions of labels that no space precedes.
    """
    breakable: list[TimedWord] = []
    glued: set[int] = set()
    words = words_of(path, tokenizer)
    for number, word in enumerate(timed_words(path, tokenizer, frame_s)):
        place = words[number] if words is not None else None
        long = word.end_s - word.start_s > SEGMENT_S or len(subtitle_lines(f"- {word.word} [?]")) > LINES
        if place is None or not long or not is_unspaced(word.word):
            breakable.append(word)
            continue
        names = [(tokenizer.text(path.ids[i : i + 1]) or "", i) for i in range(place.start, place.end)]
        labels = [Word(name, i, i + 1) for name, i in names if name]
        glued |= set(range(len(breakable) + 1, len(breakable) + len(labels)))
        breakable += path.timed(labels, frame_s)
    return breakable, glued


def split_segments(
    words: Sequence[TimedWord], glued: Collection[int] = (), *, min_confidence: float
) -> list[Segment]:
    """Split words into segments at pauses, and before a segment exceeds two lines or seven seconds.

    Args:
        words: words in order.
        glued: positions of words that no space precedes.
        min_confidence: confidence below which segments are marked.
    """
    groups: list[list[TimedWord]] = []
    texts: list[str] = []
    for number, word in enumerate(words):
        text = f"{texts[-1]}{'' if number in glued else ' '}{word.word}" if texts else word.word
        if groups and _fits(groups[-1], word, text):
            groups[-1].append(word)
            texts[-1] = text
        else:
            groups.append([word])
            texts.append(word.word)
    segments = []
    for group, text in zip(groups, texts, strict=True):
        confidence = sum(word.confidence for word in group) / len(group)
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


def _fits(group: Sequence[TimedWord], word: TimedWord, text: str) -> bool:
    """Return whether a word fits into a group, whose text is then `text`."""
    return (
        word.start_s - group[-1].end_s < PAUSE_S
        and word.end_s - group[0].start_s <= SEGMENT_S
        # Wrapped like subtitles, with all marks that they may have.
        and len(subtitle_lines(f"- {text} [?]")) <= LINES
    )


def subtitle_lines(text: str) -> list[str]:
    """Break a text into lines of at most 42 columns; a longer word is a line alone.

    Scripts without spaces may be broken anywhere. Their letters, and Korean ones, take two columns; marks
    take none.
    """
    if not is_unspaced(text) and cell_len(text) == len(text):
        return textwrap.wrap(text, LINE_CHARACTERS, break_long_words=False)
    lines = [""]
    for unit in units(text):
        if lines[-1].strip() and cell_len(lines[-1] + unit.rstrip()) > LINE_CHARACTERS:
            lines.append("")
        lines[-1] += unit
    return [line.strip() for line in lines]
