"""Text files written line by line."""

from collections.abc import Iterable
from pathlib import Path

from asr.files import atomic_text


def write_atomically(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines; the file appears under its name only when it is complete."""
    with atomic_text(path) as file:
        file.writelines(f"{line}\n" for line in lines)
