"""Digests of options, program and corpus files, to recognise a folder that is already prepared."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from asr import config
from asr.files import file_digest, write_text

RECORD = "preparation.json"
# Options that don't affect the output of a complete corpus.
NEUTRAL = {"workers", "allow_partial"}


def effective_options(options: Any) -> dict[str, Any]:
    """Return the options that affect the output, as plain data."""
    return {key: value for key, value in config.to_dict(options).items() if key not in NEUTRAL}


def fingerprint(recipe: str, options: Any, sources: Iterable[Path]) -> str:
    """Return a SHA-256 in hex that changes with the options, the code of the recipe and of this package,
    and the names, sizes and modification times of the files in `sources`.
    """
    content = {
        "recipe": recipe,
        "options": effective_options(options),
        "program": program_digest(type(options)),
        "sources": [[str(source), source_digest(source)] for source in sources],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def program_digest(options: type) -> str:
    """Return the hash of the files of this package and of the package that defines `options`."""
    file = getattr(sys.modules.get(options.__module__), "__file__", None) or __file__
    digest = hashlib.sha256()
    for folder in sorted({Path(__file__).parent, Path(file).parent}):
        for path in sorted([*folder.glob("*.py"), *folder.glob("*.txt")]):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def source_digest(source: Path) -> str:
    """Return the hash of a file's size and modification time; for a folder, of all its files and paths."""
    if source.is_file():
        state = source.stat()
        lines = [f"{state.st_size} {state.st_mtime_ns}\n"]
    else:
        lines = [
            file_state(os.path.join(folder, name)) + "\n"
            for folder, _, names in os.walk(source, followlinks=True)
            for name in names
        ]
    return hashlib.sha256("".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def file_state(path: str | Path) -> str:
    """Return a file's path, size and modification time as a key for `Preparation.map`.

    For a missing file or a broken link the key is the path alone.
    """
    try:
        state = os.stat(path)
    except OSError:
        return str(path)
    return f"{path} {state.st_size} {state.st_mtime_ns}"


def write_record(folder: Path, digest: str, outputs: list[str], problems: int) -> None:
    """Store the fingerprint, the hashes of the output files and the number of problems in the folder."""
    hashes = {name: file_digest(folder / name) for name in outputs}
    record = {"fingerprint": digest, "problems": problems, "outputs": hashes}
    write_text(json.dumps(record, indent=1) + "\n", folder / RECORD)


def matching_record(folder: Path, digest: str) -> dict[str, Any] | None:
    """Return the folder's record if its fingerprint is `digest` and its output files are unchanged."""
    try:
        record = json.loads((folder / RECORD).read_text())
        same = record["fingerprint"] == digest and all(
            file_digest(folder / name) == expected for name, expected in record["outputs"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if same else None


def recorded_outputs(folder: Path) -> list[str]:
    """Return the names of the output files in the folder's record; empty without a record."""
    try:
        return [name for name in json.loads((folder / RECORD).read_text())["outputs"] if ".." not in name]
    except (OSError, ValueError, KeyError, TypeError):
        return []
