"""Atomic output files and file hashes.

Every writer fills a temporary file in the same folder, flushes it to disk and renames it. After an error the
file is as it was before. Missing folders are created.
"""

import fcntl
import gzip
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO, cast

from asr.errors import UserError


@contextmanager
def atomic_path(path: str | Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` if the block succeeds and removed otherwise.

    Args:
        path: file to write.
        sync: flush to disk before renaming, so that the file survives a power failure.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "notes.txt")
        >>> with atomic_path(path) as temporary:
        ...     written = temporary.write_text("complete")
        ...     path.exists()
        False
        >>> path.read_text()
        'complete'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Shortened because a file name holds at most 255 bytes.
    temporary = path.with_name(f"{path.name[:40]}.{secrets.token_hex(4)}.partial")
    try:
        yield temporary
        if sync:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_text(path: str | Path) -> Iterator[TextIO]:
    """Yield a UTF-8 stream that becomes the file `path` if the block succeeds; newlines stay as written."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        yield file


@contextmanager
def atomic_binary(path: str | Path, *, zipped: bool = False) -> Iterator[IO[bytes]]:
    """Yield a binary stream that becomes the file `path` if the block succeeds.

    Args:
        path: file to write.
        zipped: compress with gzip; the header has neither name nor time, so equal content gives equal files.
    """
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        if not zipped:
            yield file
            return
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
            yield cast(IO[bytes], packed)


def write_bytes(content: bytes, path: str | Path) -> None:
    """Write bytes atomically."""
    with atomic_binary(path) as file:
        file.write(content)


def write_text(text: str, path: str | Path) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(text.encode(), path)


def write_json(values: dict[str, Any], path: str | Path) -> None:
    """Write indented JSON atomically."""
    write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", path)


@contextmanager
def locked(folder: str | Path, work: str) -> Iterator[None]:
    """Hold a folder's lock, the file `lock`; the system releases it however the process ends.

    Args:
        folder: output folder, created if missing.
        work: what writes to the folder, for the message, e.g. `asr train`.

    Raises:
        UserError: another process holds the lock.
    """
    path = Path(folder, "lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder}: another {work} is running in this folder") from None
        yield


def file_digest(path: str | Path) -> str:
    """Return the first 12 hex digits of a file's SHA-256."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:12]
