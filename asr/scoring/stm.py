"""STM files (segment time marks): the reference transcript of each segment, in NIST's markup."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError
from asr.text.files import one_field, read_lines, write_lines
from asr.text.normalise import plain_text

# Some files have underscores between the words.
IGNORED = "IGNORETIMESEGMENTINSCORING"


@dataclass(frozen=True)
class StmSegment:
    """A segment of one channel of a recording, and its transcript.

    `text` may contain alternations `{ a / b }`, `@` for no word, `(optional)` words and fragments `ab-`.
    """

    file: str
    channel: str
    speaker: str
    start_s: float
    end_s: float
    label: str  # `<O,sw,F,sw-F>`, or empty
    text: str

    @property
    def ignored(self) -> bool:
        """Whether scoring skips this segment and all words recognised in it."""
        return IGNORED in self.text.upper().replace("_", "")

    @property
    def name(self) -> str:
        """Name of the segment in messages."""
        return f"{self.file} {self.channel} {self.start_s:g}–{self.end_s:g} s"


@dataclass(frozen=True)
class Stm:
    """The segments of a file, and the comment lines that define its labels."""

    segments: list[StmSegment]
    comments: list[str]

    def restricted(self, prefixes: tuple[str, ...]) -> "Stm":
        """Return the segments of recordings whose names start with one of the prefixes."""
        return Stm([x for x in self.segments if x.file.startswith(prefixes)], self.comments)


def read_stm(path: str | Path) -> Stm:
    """Read `file channel speaker start end [<label>] words…` lines; `;;` starts a comment.

    Raises:
        UserError: the file is missing, empty or not UTF-8, or a line is malformed (named as file:line).
    """
    segments, comments = [], []
    for number, line in read_lines(path):
        if line.startswith(";;"):
            comments.append(line)
        else:
            segments.append(_parse(plain_text(line), f"{path}:{number}"))
    if not segments:
        raise UserError(f"{path}: expected segments, found none")
    return Stm(segments, comments)


def write_stm(path: str | Path, stm: Stm) -> None:
    """Write the comments, then the segments in the given order."""
    lines = list(stm.comments)
    for x in stm.segments:
        names = [one_field(name) for name in (x.file, x.channel, x.speaker)]
        fields = [*names, f"{x.start_s:.2f}", f"{x.end_s:.2f}", x.label, x.text]
        lines.append(" ".join(field for field in fields if field))
    write_lines(path, lines)


def plain_words(text: str) -> list[str]:
    """Return the words without markup: the first of each alternation, no parentheses, no `@`.

    >>> plain_words("(%HESITATION) { HE'S / HE IS } THE BA- BACK { @ / UH }")
    ['%HESITATION', "HE'S", 'THE', 'BA-', 'BACK']
    """
    first = re.sub(r"\{([^{}/]*)(/[^{}]*)?\}", r" \1 ", text)
    return [word for word in re.sub(r"[(){}]", " ", first).split() if word != "@"]


def _parse(line: str, where: str) -> StmSegment:
    fields = line.split(maxsplit=5)
    try:
        file, channel, speaker = fields[:3]
        start_s, end_s = float(fields[3]), float(fields[4])
    except (ValueError, IndexError):
        raise UserError(
            f"{where}: expected `file channel speaker start end <label> words`, found {line.strip()[:60]!r}"
        ) from None
    if not 0 <= start_s <= end_s < math.inf:
        raise UserError(f"{where}: expected a segment from start to end, found {start_s:g} to {end_s:g} s")
    rest = fields[5] if len(fields) > 5 else ""
    words = rest.split()
    label = words.pop(0) if rest.startswith("<") else ""
    return StmSegment(file, channel, speaker, start_s, end_s, label, " ".join(words))
