"""Lines of a manifest, or of a Lhotse Shar folder's manifests, as text and as plain data."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from asr.errors import UserError
from asr.files import near_path, parse_json
from asr.text.files import stream_lines

# Keys by which lhotse recognises audio, features, arrays and images. To load these it may run a command,
# fetch an address or unpickle a file.
STORED = {"sources", "storage_type", "storage_path"}
DEEPEST = 20  # maximum depth of nested custom fields

SHARD = re.compile(r"cuts(?:\.\d+)?\.jsonl(?:\.gz)?")


def shards(path: Path) -> list[Path]:
    """Return the manifests of a folder in Lhotse Shar format, in order; none for other folders."""
    return sorted(file for file in path.glob("cuts*") if SHARD.fullmatch(file.name)) if path.is_dir() else []


def manifest_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a manifest, decompressed if its name ends in `.gz`.

    Raises:
        UserError: the manifest is missing, not a regular file, broken, or not UTF-8.
    """
    if not path.exists():
        others = sorted(other.name.partition(".")[0] for other in path.parent.glob("*.cuts.jsonl.gz"))
        hint = f" (the splits there: {', '.join(others)})" if others else near_path(path)
        hint = hint or " (create it with asr prepare)"
        raise UserError(f"{path}: expected a manifest, found no such file{hint}")
    yield from stream_lines(path, "a manifest")


def manifest_entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the cuts of a manifest or Shar folder as plain data; only their ids are checked.

    Raises the errors of `asr.data.manifest.read_cuts`.
    """
    for file in shards(path) or [path]:
        for number, line in enumerate(manifest_lines(file), start=1):
            yield parse_line(line, f"{file}:{number}")


def parse_line(line: str, where: str) -> dict[str, Any]:
    """Return a line's cut as plain data without its type; only its id is checked."""
    entry = parse_json(line, where, "a cut")
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise UserError(f"{where}: expected a cut with an id, found {line[:40]!r}")
    if entry.pop("type", "MonoCut") != "MonoCut":
        raise UserError(f"{where}: utterance {entry['id']!r}: expected a MonoCut, found another type of cut")
    return entry


def is_stored(value: Any) -> TypeGuard[dict[Any, Any]]:
    """Return whether a field describes audio, features, arrays or images that lhotse would load."""
    return isinstance(value, dict) and not STORED.isdisjoint(value)
