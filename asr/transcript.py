"""Transcripts: labels with times to words, words to segments that a subtitle can show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from asr.search.decoder import words_of
from asr.search.path import TokenPath, Word
from asr.text.tokenizer import Tokenizer

PAUSE_S = 0.7  # a pause of this length ends a segment
SEGMENT_CHARACTERS = 84  # two lines of a subtitle
SEGMENT_S = 7.0


@dataclass(frozen=True)
class TimedWord:
    """A word, its time in seconds, and its mean confidence; a label where no words are known."""

    word: str
    start_s: float
    end_s: float
    confidence: float


@dataclass(frozen=True)
class Segment:
    """Words between two pauses, at most two lines of a subtitle long.

    Attributes:
        text: of the words.
        start_s, end_s: in seconds.
        confidence: certainty of its frames, 0 … 1.
        low_confidence: whether that is below what is usual at its length.
        words: with their times.
    """

    text: str
    start_s: float
    end_s: float
    confidence: float
    low_confidence: bool
    words: list[TimedWord]


@dataclass(frozen=True)
class Transcript:
    """What was said in a recording, or in one channel of it.

    Attributes:
        text: the words; labels in a row where the vocabulary knows no words.
        tokens: labels of the vocabulary.
        times_s: start of each label in seconds.
        confidence: of each label, 0 … 1.
        words: (word, start in seconds) where the search gives words.
        duration_s: of the recording.
        segments: the same words with start, end and confidence, split at pauses.
        certainty: of the whole, 0 … 1; low where the audio is unlike the training data.
        usual_certainty: what recordings of this length usually reach, or `min_confidence`.
        low_confidence: whether certainty is below that.
        channel: number of the channel; None: the mean of all.
    """

    text: str
    tokens: list[str]
    times_s: list[float]
    confidence: list[float]
    words: list[tuple[str, float]] | None
    duration_s: float
    segments: list[Segment] = field(default_factory=list)
    certainty: float = 0.0
    usual_certainty: float = 0.0
    low_confidence: bool = False
    channel: int | None = None


def timed_words(path: TokenPath, tokenizer: Tokenizer, frame_s: float) -> list[TimedWord]:
    """Return the words of a search result with their times; its labels where it has no words.

    Args:
        path: labels with their frames.
        tokenizer: the model's.
        frame_s: duration of an encoder frame.
    """
    ends = path.ends or [frame + 1 for frame in path.frames]
    words = words_of(path, tokenizer)
    if words is None:
        words = [Word(symbol, i, i + 1) for i, symbol in enumerate(tokenizer.tokens(path.ids))]
    timed = []
    for word in words:
        confidences = path.confidences[word.start : word.end]
        timed.append(
            TimedWord(
                word.word,
                round(path.frames[word.start] * frame_s, 3),
                round(ends[word.end - 1] * frame_s, 3),
                round(sum(confidences) / len(confidences), 4),
            )
        )
    return timed


def split_segments(
    words: Sequence[TimedWord], certain: Callable[[float, float], tuple[float, float]]
) -> list[Segment]:
    """Split words where a subtitle would: at pauses, and before two lines or seven seconds are exceeded.

    Args:
        words: in order.
        certain: certainty between two times in seconds, and the one below which a segment is marked.
    """
    groups: list[list[TimedWord]] = []
    for word in words:
        if groups and _fits(groups[-1], word):
            groups[-1].append(word)
        else:
            groups.append([word])
    segments = []
    for group in groups:
        start_s, end_s = group[0].start_s, group[-1].end_s
        confidence, limit = certain(start_s, end_s)
        text = " ".join(word.word for word in group)
        segments.append(Segment(text, start_s, end_s, round(confidence, 4), confidence < limit, group))
    return segments


def _fits(group: Sequence[TimedWord], word: TimedWord) -> bool:
    characters = sum(len(other.word) + 1 for other in group) + len(word.word)
    return (
        word.start_s - group[-1].end_s < PAUSE_S
        and characters <= SEGMENT_CHARACTERS
        and word.end_s - group[0].start_s <= SEGMENT_S
    )
