"""CTM files (conversation time marks): recognised words with recording, channel and time."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError
from asr.files import write_text
from asr.text.files import one_field, read_lines
from asr.text.normalise import plain_text

BEGIN, NEXT, END = "<ALT_BEGIN>", "<ALT>", "<ALT_END>"


@dataclass(frozen=True)
class CtmWord:
    """A recognised word of one channel of a recording."""

    file: str
    channel: str
    start_s: float
    duration_s: float
    word: str
    confidence: float | None = None  # 0 … 1

    @property
    def middle_s(self) -> float:
        """Midpoint, which determines the segment that the word belongs to."""
        return self.start_s + self.duration_s / 2.0


@dataclass(frozen=True)
class CtmAlternatives:
    """Alternative word sequences, any of which counts as recognised."""

    file: str
    channel: str
    choices: tuple[tuple[CtmWord, ...], ...]

    @property
    def start_s(self) -> float:
        """Start of the earliest word."""
        return min(word.start_s for choice in self.choices for word in choice)

    @property
    def middle_s(self) -> float:
        """Latest midpoint of a word in any choice (sclite's rule)."""
        return max(word.middle_s for choice in self.choices for word in choice)


CtmEntry = CtmWord | CtmAlternatives


def read_ctm(path: str | Path) -> list[CtmEntry]:
    """Read `file channel start duration word [confidence]` lines, and alternatives between `<ALT…>` lines.

    Raises:
        UserError: the file is missing or not UTF-8, or a line is malformed (named as file:line).
    """
    lines = (
        (f"{path}:{number}", plain_text(line).split())
        for number, line in read_lines(path)
        if not line.startswith(";;")
    )
    entries: list[CtmEntry] = []
    for where, fields in lines:
        if len(fields) > 4 and fields[4].upper() == BEGIN:
            entries.append(_read_alternatives(lines, fields, where))
        else:
            entries.append(_parse(fields, where))
    return entries


def write_ctm(path: str | Path, entries: Iterable[CtmEntry]) -> None:
    """Write words and alternatives sorted by recording, channel and time, as sclite requires."""
    write_text(ctm_text(entries), path)


def ctm_text(entries: Iterable[CtmEntry]) -> str:
    """Return the lines that `write_ctm` writes."""
    return "".join(f"{line}\n" for entry in in_order(entries) for line in format_entry(entry))


def in_order(entries: Iterable[CtmEntry]) -> list[CtmEntry]:
    """Sort by recording, channel and start time as written; ties keep their order."""
    return sorted(entries, key=lambda x: (one_field(x.file), one_field(x.channel), round(x.start_s, 3)))


def format_entry(entry: CtmEntry) -> Iterator[str]:
    """Yield the line for a word, or the lines for alternatives."""
    channel = f"{one_field(entry.file)} {one_field(entry.channel)}"
    if isinstance(entry, CtmWord):
        confidence = "" if entry.confidence is None else f" {entry.confidence:.4f}"
        times = f"{entry.start_s:.3f} {entry.duration_s:.3f}"
        yield f"{channel} {times} {'_'.join(entry.word.split())}{confidence}"
        return
    for index, choice in enumerate(entry.choices):
        yield f"{channel} * * {NEXT if index else BEGIN}"
        for word in choice:
            yield from format_entry(word)
    yield f"{channel} * * {END}"


def _read_alternatives(
    lines: Iterator[tuple[str, list[str]]], first: list[str], where: str
) -> CtmAlternatives:
    choices: list[list[CtmWord]] = [[]]
    for place, fields in lines:
        match fields[4].upper() if len(fields) > 4 else "":
            case "<ALT>":
                choices.append([])
            case "<ALT_END>":
                if not any(choices):
                    break
                return CtmAlternatives(first[0], first[1], tuple(map(tuple, choices)))
            case _:
                choices[-1].append(_parse(fields, place))
    raise UserError(f"{where}: expected words and {END} after {BEGIN}, found none")


def _parse(fields: list[str], where: str) -> CtmWord:
    try:
        start_s, duration_s = float(fields[2]), float(fields[3])
        confidence = float(fields[5]) if len(fields) > 5 and fields[5].upper() != "NA" else None
        # A word without a place in time would be scored as if it had not been recognised.
        if not (0 <= start_s < math.inf and 0 <= duration_s < math.inf):
            raise ValueError
        return CtmWord(fields[0], fields[1], start_s, duration_s, fields[4], confidence)
    except (ValueError, IndexError):
        raise UserError(
            f"{where}: expected `file channel start duration word`, found {' '.join(fields)[:60]!r}"
        ) from None
