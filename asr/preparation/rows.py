"""Utterances of your own data: normalises transcripts, checks segments against their audio."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from asr.errors import CONTROL, UserError
from asr.preparation.options import is_split
from asr.preparation.run import Preparation
from asr.text.normalise import is_removed, normalise, not_said, plain_text, sounds

# Segment times are often rounded: a segment that ends up to this much after its recording is shortened.
ROUNDING_S = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """An utterance as described by the data.

    Attributes:
        name: utterance id.
        audio: path of the audio file.
        text: transcript as written.
        where: file and line of the description, for messages.
        speaker: speaker id; empty: the utterance id.
        split: name of the split; empty: it will be chosen.
        start_s: start time in the file.
        duration_s: duration; None: to the end of the file.
        stated: whether the data state a duration without a start: that of the whole file, rounded, or of its
            beginning.
        times: file and line of the times, for messages; empty: `where`.
        channel: channel of the file; None: the file must have one channel.
        recording: recording id; empty: derived from the file name.
        written: transcript with digits or sounds in brackets, if `text` lacks them; else empty.
        sounds: sounds and remarks in the transcript as written.
    """

    name: str
    audio: str
    text: str
    where: str
    speaker: str = ""
    split: str = ""
    start_s: float = 0.0
    duration_s: float | None = None
    stated: bool = False
    times: str = ""
    channel: int | None = None
    recording: str = ""
    written: str = ""
    sounds: tuple[str, ...] = ()


def text_field(value: Any, name: str, where: str) -> str:
    """Return a field of JSON data as text, empty for null.

    Raises:
        UserError: the value is neither text nor a number; the message contains `where` and `name`.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise UserError(f"{where}: expected text as {name}, found {str(value)[:60]!r}")
    return "" if value is None else str(value)


def number_field(value: Any, name: str, where: str) -> float | None:
    """Return a field as a number, None for null or empty text.

    Raises:
        UserError: the value isn't a finite number; the message contains `where` and `name`.
    """
    text = text_field(value, name, where).strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: expected a number as {name}, found {text[:60]!r}")
    return number


def channel_field(value: Any, where: str) -> int | None:
    """Return a field as the number of a channel; None and errors as in `number_field`."""
    number = number_field(value, "channel", where)
    if number is None or number.is_integer():
        return None if number is None else int(number)
    raise UserError(f"{where}: expected the number of a channel, found {number}")


def normalised_rows(rows: Iterable[Row], preparation: Preparation, rule: str, language: str) -> Iterator[Row]:
    """Yield the rows with normalised text and a speaker; duplicate ids and empty transcripts are problems.

    Transcripts with signs or numbers that `spoken` can't read are left out. The original of a text with
    digits or with sounds in brackets is kept as `Row.written`.
    """
    first: dict[str, str] = {}
    for row in rows:
        with preparation.reporting():
            if row.name in first:
                raise UserError(
                    f"{row.where}: expected ids to be distinct, found {row.name} again "
                    f"(first: {first[row.name]})",
                    "duplicates",
                )
            first[row.name] = row.where
            _check_names(row)
            if not row.text.strip():
                raise UserError(
                    f"{row.where}: expected a transcript of {row.name}, found none", "missing_text"
                )
            text, noises = normalise(row.text, rule, language), tuple(sounds(row.text))
            if rule == "spoken" and (signs := not_said(row.text, language)):
                preparation.drop(row.name, f"text=spoken has no words for '{' '.join(signs)}'", row.text)
            elif text:
                digits = rule == "spoken" and any(x.isnumeric() for x in row.text)
                removed = rule in ("words", "spoken") and any(map(is_removed, noises))
                written = plain_text(row.text) if digits or removed else ""
                speaker = row.speaker or row.name
                yield replace(row, text=text, speaker=speaker, written=written, sounds=noises)
            else:
                preparation.drop(row.name, f"no words left by text={rule}", row.text)


def _check_names(row: Row) -> None:
    """Raise a `UserError` if a name has control characters, or a split's manifest would lie elsewhere."""
    text = " ".join(row.text.split())
    fields = {
        "id": row.name,
        "path": row.audio,
        "speaker": row.speaker,
        "split": row.split,
        "transcript": text,
    }
    for name, value in fields.items():
        if CONTROL.search(value):
            raise UserError(
                f"{row.where}: expected no control characters in the {name}, found {value[:60]!r}"
            )
    if not is_split(row.split):
        raise UserError(f"{row.where}: expected the name of a split, found {row.split!r}")


def distinct_names(paths: Iterable[str]) -> dict[str, str]:
    """Return a distinct name for each path: the file name without suffix, with as many folders as needed.

    >>> distinct_names(["x/a.wav", "y/a.wav"])
    {'x/a.wav': 'x-a', 'y/a.wav': 'y-a'}
    """
    unnamed = list(dict.fromkeys(paths))
    names: dict[str, str] = {}
    for keep_suffix in (False, True):  # a folder may contain both a.wav and a.flac
        parts = {path: Path(path if keep_suffix else os.path.splitext(path)[0]).parts for path in unnamed}
        for depth in range(1, max(map(len, parts.values()), default=0) + 1):
            names = {path: "-".join(parts[path][-depth:]) for path in unnamed}
            if len(set(names.values())) == len(names):
                return names
    return names


def fitted(row: Row, facts: Sequence[int]) -> Row:
    """Return the row with a channel and a duration that lie within its file.

    Args:
        row: the row.
        facts: samples, sample rate and channels of its file.

    Raises:
        UserError: the segment lies outside the file, or the channel is missing or unknown.
    """
    samples, rate, channels = facts
    length_s = samples / rate
    if row.channel is None and channels > 1:
        raise UserError(
            f"{row.where}: {row.audio} has {channels} channels: expected one, or the number of "
            f"the channel of {row.name} (channel=, or a column channel; the first is 0)"
        )
    if row.channel is not None and not 0 <= row.channel < channels:
        raise UserError(
            f"{row.where}: expected a channel from 0 to {channels - 1} of {row.audio}, found {row.channel}"
        )
    end_s = length_s if row.duration_s is None else row.start_s + row.duration_s
    if row.stated and abs(end_s - length_s) <= ROUNDING_S + _last_digit(end_s):
        end_s = length_s
    if not 0 <= row.start_s < end_s or end_s > length_s + ROUNDING_S:
        raise UserError(
            f"{row.times or row.where}: expected {row.name} to lie within the {length_s:.3f} s of "
            f"{row.audio}, found {row.start_s:.3f} s to {end_s:.3f} s",
            "times",
        )
    whole = row.start_s == 0 and end_s >= length_s
    duration_s = length_s if whole else round(min(end_s, length_s) - row.start_s, 9)
    return replace(row, duration_s=duration_s, channel=row.channel or 0)


def _last_digit(number: float) -> float:
    """Return the value of a number's last decimal place: 0.1 for 2.3."""
    return 10.0 ** min(0, int(Decimal(repr(number)).as_tuple().exponent)) if number % 1 else 1.0
