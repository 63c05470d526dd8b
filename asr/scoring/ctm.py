"""CTM files (conversation time marks): recognised words with recording, channel and time."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from asr.files import write_text
from asr.text.files import one_field


@dataclass(frozen=True)
class CtmWord:
    """A recognised word of one channel of a recording."""

    file: str
    channel: str
    start_s: float
    duration_s: float
    word: str
    confidence: float | None = None  # 0 … 1


def write_ctm(path: str | Path, words: Iterable[CtmWord]) -> None:
    """Write words sorted by recording, channel and time, as sclite requires."""
    write_text(ctm_text(words), path)


def ctm_text(words: Iterable[CtmWord]) -> str:
    """Return the lines that `write_ctm` writes; words with equal written start times keep their order."""
    in_order = sorted(words, key=lambda x: (one_field(x.file), one_field(x.channel), round(x.start_s, 3)))
    return "".join(map(_line, in_order))


def _line(word: CtmWord) -> str:
    confidence = "" if word.confidence is None else f" {word.confidence:.4f}"
    times = f"{word.start_s:.3f} {word.duration_s:.3f}"
    names = f"{one_field(word.file)} {one_field(word.channel)}"
    return f"{names} {times} {'_'.join(word.word.split())}{confidence}\n"
