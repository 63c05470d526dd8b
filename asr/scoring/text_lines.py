"""Text files written line by line."""

import os
from collections.abc import Iterable
from pathlib import Path


def write_atomically(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines; the file appears under its name only when it is complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    os.replace(partial, path)
