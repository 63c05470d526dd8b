"""Read MS98 transcripts: the segments of a conversation side with times and words."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from asr.errors import UserError
from asr.text.files import read_lines  # asr.preparation would load torch in every worker process

from .words import map_word

LINE = re.compile(
    r"sw(\d{4})([AB])-ms98-a-(\d{4})\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)(?:\s+(.*))?", re.IGNORECASE
)
FILE = re.compile(r"sw(\d{4})([AB])-ms98-a-trans\.text", re.IGNORECASE)


class SideSegment(NamedTuple):
    """A segment of one conversation side."""

    conversation: str  # sw02001
    side: str  # A or B
    start: int  # in hundredths of a second
    end: int
    text: str  # empty for silence

    @property
    def name(self) -> str:
        """Utterance id as in Kaldi's recipe: conversation, side, start and end."""
        return f"{self.conversation}-{self.side}_{self.start:06d}-{self.end:06d}"


def read_transcript(path: str | Path) -> dict[str, Any]:
    """Read `sw2001A-ms98-a-trans.text`: lines of id, start, end (s) and words.

    Returns:
        JSON-serialisable data: `conversation` and `side`, `segments` as lists of start, end (in hundredths of
        a second) and text, and `problems` with other lines.

    Raises:
        UserError: the file can't be read, isn't UTF-8, or has no transcript name.
    """
    named = FILE.fullmatch(Path(path).name)
    if named is None:
        raise UserError(f"{path}: expected a name like sw2001A-ms98-a-trans.text")
    conversation, side = f"sw0{named[1]}", named[2].upper()
    segments, problems = [], []
    lines: dict[str, int] = {}
    for number, line in read_lines(path):
        try:
            segment = parse_segment(line)
            if (segment.conversation, segment.side) != (conversation, side):
                raise ValueError(f"expected a segment of {named[1]}{named[2]}, found {line.split()[0]}")
            if segment.text and lines.setdefault(segment.name, number) != number:
                first = lines[segment.name]
                raise ValueError(f"expected ids to be distinct, found {segment.name} of line {first} again")
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
        else:
            segments.append([segment.start, segment.end, segment.text])
    return {"conversation": conversation, "side": side, "segments": segments, "problems": problems}


def parse_segment(line: str) -> SideSegment:
    """Parse a line into a segment.

    >>> parse_segment("sw2001A-ms98-a-0002 0.977625 11.561375 hi um [silence] yeah i'd [laughter-like]")
    SideSegment(conversation='sw02001', side='A', start=98, end=1156, text="hi um yeah i'd like")

    Raises:
        ValueError: the line is malformed, ends before it starts, or has unknown markup.
    """
    fields = LINE.fullmatch(line.strip())
    if fields is None:
        raise ValueError(f"expected `sw2001A-ms98-a-0001 start end words`, found {line.strip()[:60]!r}")
    # Rounds half up.
    start, end = (int(100 * float(time) + 0.5) for time in (fields[4], fields[5]))
    if end <= start:
        raise ValueError(f"expected an end after the start, found {fields[4]} s to {fields[5]} s")
    words = [map_word(word) for word in (fields[6] or "").split()]
    text = " ".join(word for word in words if word is not None)
    return SideSegment(f"sw0{fields[1]}", fields[2].upper(), start, end, text)
