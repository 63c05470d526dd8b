"""Text files: reading with errors that name file and line, and atomic writing."""

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from asr.errors import UserError
from asr.files import atomic_text


def read_text(path: str | Path, encoding: str = "utf-8") -> str:
    """Return the content of a text file with `\\n` line endings; `.gz` files are decompressed.

    Raises:
        UserError: the file is missing, unreadable, corrupt gzip, or not valid text in `encoding` (the line
            is named).
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise UserError(f"{path}: expected a text file, found none") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: expected a whole gzip file, found a broken one ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: the file can't be read ({error.strerror})") from None
    try:
        text = content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = content[error.start : error.end].hex(" ")
        raise UserError(f"{path}:{line}: expected {encoding} text, found the bytes {found}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: str | Path, encoding: str = "utf-8") -> list[tuple[int, str]]:
    """Return (line number from 1, line) for every line that is not blank; errors as in `read_text`."""
    lines = enumerate(read_text(path, encoding).split("\n"), start=1)
    return [(number, line) for number, line in lines if line.strip()]


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines as UTF-8 text; the file appears under its name only once it is complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_text(path) as file:
        file.writelines(f"{line}\n" for line in lines)
