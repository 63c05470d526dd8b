"""Text files, JSON and tables: reading with errors that name file and line, and atomic writing."""

import csv
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from asr.errors import CONTROL, UserError
from asr.files import GZIP_MAGIC, atomic_text, require_file

SMALL = 1 << 26  # bytes to which any file may unpack
MOST_RATIO = 100  # maximum compression ratio of larger files; natural text has 2 to 10
FORMULA = re.compile(r"'*[=+\-@]")


def read_text(path: str | Path, encoding: str = "utf-8") -> str:
    """Return the content of a text file with `\\n` line endings; gzipped files are decompressed.

    Raises:
        UserError: the file is missing, unreadable, corrupt gzip, or not valid text in `encoding` (the line
            is named).
    """
    path = Path(path)
    require_file(path, "a text file")
    try:
        content = path.read_bytes()
        content = _unpacked(path) if path.suffix == ".gz" or content[:2] == GZIP_MAGIC else content
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None
    try:
        text = content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1  # the object lacks a byte order mark
        found = error.object[error.start : error.end].hex(" ")
        raise UserError(f"{path}:{line}: expected {encoding} text, found the bytes {found}") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(f"{path}:{line}: expected {encoding} text, found a null character")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unpacked(path: Path) -> bytes:
    """Return the content of a gzipped text; refuse a small file that would fill the memory."""
    most = max(SMALL, MOST_RATIO * path.stat().st_size)
    with gzip.open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UserError(
            f"{path}: expected text, found {path.stat().st_size} bytes that unpack to more than {most}"
        )
    return content


def stream_lines(path: str | Path, expected: str = "a text file") -> Iterator[str]:
    """Yield the lines of a UTF-8 text with their line ends; gzipped files are decompressed.

    Args:
        path: file to read; gzipped if its name ends in `.gz` or it begins with gzip's magic number.
        expected: expected kind of file, for messages.

    Raises:
        UserError: as in `read_text`.
    """
    path = Path(path)
    require_file(path, expected)
    number = 0
    try:
        with open(path, "rb") as raw:
            zipped = path.suffix == ".gz" or raw.peek(2)[:2] == GZIP_MAGIC
            with gzip.open(raw) if zipped else raw as file:
                for number, line in enumerate(file, start=1):
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    if "\0" in text:
                        raise UserError(f"{path}:{number}: expected {expected}, found a null character")
                    yield text
    except UnicodeDecodeError as error:
        found = error.object[error.start : error.end].hex(" ")
        message = f"expected {expected} in UTF-8, found the bytes {found}"
        raise UserError(f"{path}:{number}: {message}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: Exception) -> UserError:
    """Return the error for a file that can't be read, or isn't a complete gzip file."""
    if isinstance(error, (EOFError, gzip.BadGzipFile, zlib.error)):
        return UserError(f"{path}: expected a whole gzip file, found a broken one ({error})")
    return UserError(f"{path}: the file can't be read ({getattr(error, 'strerror', error)})")


def read_lines(path: str | Path, encoding: str = "utf-8") -> list[tuple[int, str]]:
    """Return (line number from 1, line) for every line that is not blank; errors as in `read_text`."""
    lines = enumerate(read_text(path, encoding).split("\n"), start=1)
    return [(number, line) for number, line in lines if line.strip()]


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines as UTF-8 text; the file appears under its name only once it is complete.

    Raises:
        UserError: a line contains a line break.
    """
    with atomic_text(path) as file:
        for line in lines:
            if "\n" in line or "\r" in line:
                raise UserError(f"{path}: expected one line, found a line break in {line[:60]!r}")
            file.write(f"{line}\n")


def one_field(name: str) -> str:
    """Return a name as one field of a line, with `_` for spaces, parentheses and a comment's `;;`.

    >>> one_field("my talk (1)")
    'my_talk_1_'
    """
    return re.sub(r"[\s()]+|^;;+", "_", name) or "_"


def write_table(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table as CSV if the name ends in `.csv`, else as TSV.

    Control characters become escapes such as `\\n`. Text that begins with `=`, `+`, `-` or `@`, which a
    spreadsheet would run as a formula, gets an apostrophe, unless it is a number.
    """
    style: dict[str, Any] = {"lineterminator": "\n"}
    if Path(path).suffix != ".csv":
        style["delimiter"] = "\t"
    with atomic_text(path) as file:
        writer = csv.writer(file, **style)
        writer.writerow([_cell(value) for value in header])
        writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    shown = CONTROL.sub(lambda found: repr(found[0])[1:-1], value)
    return f"'{shown}" if FORMULA.match(shown) and not _is_number(shown) else shown


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
