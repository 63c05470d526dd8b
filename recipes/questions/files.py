"""Reads records in public formats: tables with tabs, JSON, JSON Lines, and folders saved by `datasets`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import file_digest, parse_json
from asr.text.files import read_lines, read_text

SUFFIXES = (".tsv", ".txt", ".jsonl", ".json")


@dataclass(frozen=True)
class RawExample:
    """Fields of an example by name, and its file and line for messages."""

    where: str
    fields: dict[str, Any]

    def get(self, names: Sequence[str]) -> Any:
        """Return the first field that exists; None without any."""
        return next((self.fields[name] for name in names if name in self.fields), None)


def find_data(data: Path, folders: Sequence[str], names: Sequence[str], public: str) -> Path:
    """Return the file or saved folder with the examples of a task.

    Args:
        data: the file itself, or a folder that contains it, directly or in one of `folders`.
        folders: the task's folder in the public layout, and other names for it.
        names: file names without suffix; the first one that exists is used.
        public: path of the public file in `data`, for the message.

    Raises:
        UserError: there is no such file or folder.
    """
    if data.is_file():
        return data
    places = [*(data / folder for folder in folders), data]
    for place in places:
        if is_saved_dataset(place):
            return place
        for name in names:
            for suffix in SUFFIXES:
                if (path := place / f"{name}{suffix}").is_file():
                    return path
    raise UserError(f"data={data}: expected the file {public}, found none")


def is_saved_dataset(folder: Path) -> bool:
    """Return whether `datasets` saved this folder, as one split or several."""
    return (folder / "dataset_dict.json").is_file() or (folder / "dataset_info.json").is_file()


def examples_digest(path: Path) -> str:
    """Return a hash of a file, or of all files of a folder."""
    if path.is_file():
        return file_digest(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return "-".join(file_digest(file) for file in files)


def read_records(path: Path, header: Sequence[str], splits: Sequence[str]) -> Iterator[RawExample]:
    """Yield the records of a file or saved folder.

    Args:
        path: `.tsv` (columns separated by tabs, quotation marks are text), `.jsonl`, `.json` (a list, or an
            object with the list as `data`), or a folder saved by `datasets`.
        header: names of the columns of a table without a header line.
        splits: splits to read from a saved folder with several; the first one that exists is used.

    Raises:
        UserError: the file can't be read, or has another format.
    """
    if path.is_dir():
        yield from _read_saved(path, splits)
    elif path.suffix == ".jsonl":
        for number, line in read_lines(path):
            where = f"{path}:{number}"
            yield RawExample(where, _object(parse_json(line, where, "an example"), where))
    elif path.suffix == ".json":
        values = parse_json(read_text(path), str(path), "examples")
        values = values.get("data") if isinstance(values, dict) else values
        if not isinstance(values, list):
            raise UserError(f"{path}: expected a list of examples, found {str(values)[:60]!r}")
        for number, value in enumerate(values):
            where = f"{path}: example {number}"
            yield RawExample(where, _object(value, where))
    elif path.suffix in (".tsv", ".txt"):
        yield from _read_table(path, header)
    else:
        raise UserError(f"{path}: expected a file .tsv, .jsonl or .json")


def _read_table(path: Path, header: Sequence[str]) -> Iterator[RawExample]:
    lines = read_lines(path)
    if not header and lines:
        header = lines.pop(0)[1].split("\t")
    for number, line in lines:
        # A line with too few columns lacks the last fields; further columns are ignored.
        yield RawExample(f"{path}:{number}", dict(zip(header, line.split("\t"), strict=False)))


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected an object, found {json.dumps(value, ensure_ascii=False)[:60]}")
    return value


def _read_saved(folder: Path, splits: Sequence[str]) -> Iterator[RawExample]:
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{folder}: a folder saved by `datasets`, which is not installed: pip install datasets, or "
            "save it as .jsonl"
        ) from None
    rows = datasets.load_from_disk(str(folder))
    if isinstance(rows, dict):
        present = next((split for split in splits if split in rows), None)
        if present is None:
            raise UserError(f"{folder}: expected a split {' or '.join(splits)}, found {', '.join(rows)}")
        rows = rows[present]
    for number, row in enumerate(rows):
        yield RawExample(f"{folder}: example {number}", dict(row))
