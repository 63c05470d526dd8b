"""Reads transcript tables (TSV, CSV, JSON lines) with the usual column names."""

import csv
import io
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import parse_json
from asr.preparation.rows import text_field
from asr.text.files import read_lines, read_text

# SpeechBrain's name: its reader takes `start` and `stop` in samples (speechbrain.dataio.dataio.read_audio).
STOP = "stop"
SUFFIXES = (".tsv", ".csv", ".jsonl", ".json")
NAMES = {
    "audio": [
        *("audio", "file", "path", "wav", "audio_path", "audio_file", "audio_filepath", "filename"),
        "file_name",
    ],
    "text": ["text", "transcript", "transcription", "sentence", "words", "wrd"],
    "id": ["id", "utterance", "utterance_id", "utt_id", "utt"],
    "speaker": ["speaker", "speaker_id", "spk", "spk_id", "client_id", "reader"],
    "split": ["split", "set", "subset", "partition"],
    "start": ["start", "start_s", "offset", "begin"],
    "end": ["end", "end_s", STOP],
    "duration": ["duration", "duration_s"],
    "channel": ["channel"],
}


@dataclass(frozen=True)
class Entry:
    """A line of a table.

    Attributes:
        where: file and line, for messages.
        fields: values by canonical column name.
        ignored: reason to leave the line out; empty: it is used.
        samples: whether start and end are in samples instead of seconds.
    """

    where: str
    fields: dict[str, str]
    ignored: str = ""
    samples: bool = False


def read_table(path: Path, columns: dict[str, str]) -> list[Entry]:
    """Return the entries of a table.

    A first line with known column names is a header. Without one there must be two columns, audio and text.

    Args:
        path: .tsv (no quoting), .csv (standard quoting), .jsonl or .json (one object per line).
        columns: unusual column names by canonical name, e.g. `{"text": "phrase"}`.

    Raises:
        UserError: the table is malformed; the message has file and line.
    """
    if path.suffix.lower() in (".jsonl", ".json"):
        return _json_entries(path, columns)
    style: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    if path.suffix.lower() != ".tsv":
        style = {"strict": True}
    reader = csv.reader(io.StringIO(read_text(path)), **style)
    try:
        lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:  # e.g. a quote that is never closed
        raise UserError(f"{path}:{reader.line_num}: expected a table, found {error}") from None
    if not lines:
        raise UserError(f"{path}: expected lines with audio and text, found none")
    width = len(lines[0][1])
    first = [cell.strip() for cell in lines[0][1]]
    header = known_columns(first, columns)
    check_columns(f"{path}:{lines[0][0]}", first, header, columns)
    samples = in_samples(first, header, columns)
    if "audio" in header and "text" in header:
        lines = lines[1:]
    elif len(lines[0][1]) == 2 and not columns:
        header = {"audio": 0, "text": 1}
    else:
        raise UserError(
            f"{path}:{lines[0][0]}: expected columns named audio and text (or two columns without names), "
            f"separated by {'tabs' if path.suffix.lower() == '.tsv' else 'commas'}, "
            f"found {', '.join(lines[0][1])[:80]!r}; map other names with columns=audio:x,text:y"
        )
    entries = []
    for number, cells in lines:
        where = f"{path}:{number}"
        if len(cells) <= max(header["audio"], header["text"]):
            raise UserError(f"{where}: expected {max(header.values()) + 1} columns, found {len(cells)}")
        # A row divided at a separator in its text would have a shorter transcript, or part of it as speaker.
        if any(cell.strip() for cell in cells[width:]):
            raise UserError(f"{where}: expected {width} columns, found {len(cells)}", "damaged_text")
        fields = {n: cells[i].strip() for n, i in header.items() if i < len(cells)}
        entries.append(Entry(where, fields, samples=samples))
    return entries


def parse_columns(written: str) -> dict[str, str]:
    """Parse `audio:clip,text:phrase` into a dictionary.

    Raises:
        UserError: the syntax is wrong, or a column is unknown.
    """
    columns = {}
    for pair in filter(None, (part.strip() for part in written.split(","))):
        name, colon, column = pair.partition(":")
        if not colon or name not in NAMES:
            raise UserError(f"columns={written}: expected {'|'.join(NAMES)}:<column>, found {pair!r}")
        columns[name] = column
    return columns


def known_columns(cells: list[str], columns: dict[str, str]) -> dict[str, int]:
    """Return column positions by canonical name."""
    lowered = [cell.lower() for cell in cells]
    positions = {}
    for name, usual in NAMES.items():
        names = [columns[name]] if name in columns else usual
        for candidate in names:
            if candidate in cells or candidate.lower() in lowered:
                positions[name] = (
                    cells.index(candidate) if candidate in cells else lowered.index(candidate.lower())
                )
                break
    return positions


def check_columns(where: str, cells: Iterable[str], names: Container[str], columns: dict[str, str]) -> None:
    """Raise a `UserError` unless every column that the options name was found.

    Args:
        where: table, perhaps with its line, for the message.
        cells: names of the table's columns.
        names: canonical names of the columns found.
        columns: column names by canonical name, from the options.
    """
    # If a mistyped speaker column were ignored, speakers would be put into several splits.
    for name, column in columns.items():
        if name not in names:
            listed = ", ".join(cells)[:200]
            raise UserError(f"{where}: expected the column {column!r} (columns={name}:…), found {listed}")


def in_samples(cells: list[str], header: dict[str, int], columns: dict[str, str]) -> bool:
    """Return whether times are in samples; `columns=end:stop` means that they are in seconds."""
    return "end" in header and "end" not in columns and cells[header["end"]].lower() == STOP


def _json_entries(path: Path, columns: dict[str, str]) -> list[Entry]:
    """Return the entries of JSON lines; some may lack optional values, e.g. the speaker."""
    entries = []
    keys: dict[str, None] = {}
    names: set[str] = set()
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        values = parse_json(line, where, "an object")
        if not isinstance(values, dict):
            raise UserError(f"{where}: expected a JSON object, found {line[:40]!r}")
        entries.append(_json_entry(where, values, columns))
        keys |= dict.fromkeys(values)
        names |= entries[-1].fields.keys()
    if entries:
        check_columns(str(path), keys, names, columns)
    return entries


def _json_entry(where: str, values: dict[str, Any], columns: dict[str, str]) -> Entry:
    keys = list(values)
    header = known_columns(keys, columns)
    for name in ["audio", "text"]:
        if name not in header:
            names = [columns[name]] if name in columns else NAMES[name][:4]
            raise UserError(f"{where}: expected the {name} (as {' or '.join(names)}), found {keys}")
    fields = {name: text_field(values[keys[i]], name, where) for name, i in header.items()}
    return Entry(where, fields, samples=in_samples(keys, header, columns))
