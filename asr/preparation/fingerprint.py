"""Whether a folder was already prepared: digests of the options, the program and the corpus' files."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from asr import config
from asr.files import file_digest, write_text

RECORD = "preparation.json"
# These don't change what is written from whole input.
NEUTRAL = {"workers", "allow_partial"}


def effective_options(options: Any) -> dict[str, Any]:
    """Return the options that what is written depends on, as plain data."""
    return {key: value for key, value in config.to_dict(options).items() if key not in NEUTRAL}


def fingerprint(recipe: str, options: Any, sources: Iterable[Path]) -> str:
    """Return 64 hex digits that change with the options, the recipe's and this package's code, and the
    names, sizes or modification times of the files at and below `sources`.
    """
    content = {
        "recipe": recipe,
        "options": effective_options(options),
        "program": program_digest(type(options)),
        "sources": [[str(source), source_digest(source)] for source in sources],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def program_digest(options: type) -> str:
    """Return the hash of this package's files and of those beside the module that defines `options`."""
    module = sys.modules.get(options.__module__)
    folders = {Path(__file__).parent}
    if module is not None and getattr(module, "__file__", None):
        folders.add(Path(str(module.__file__)).parent)
    digest = hashlib.sha256()
    for folder in sorted(folders):
        for path in sorted([*folder.glob("*.py"), *folder.glob("*.txt")]):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def source_digest(source: Path) -> str:
    """Return the hash of names, sizes and modification times of a file or of all files below a folder."""
    digest = hashlib.sha256()
    for line in sorted(_listing(source)):
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def file_state(path: str | Path) -> str:
    """Return a text that names a file and changes with it, by its size and modification time: a key of
    `Preparation.map`. Of a link to nothing it is the name alone.
    """
    try:
        state = os.stat(path)
    except OSError:
        return str(path)
    return f"{path} {state.st_size} {state.st_mtime_ns}"


def _listing(source: Path) -> Iterator[str]:
    if source.is_file():
        state = source.stat()
        yield f"{state.st_size} {state.st_mtime_ns}\n"
        return
    for folder, _, names in os.walk(source, followlinks=True):
        for name in names:
            yield file_state(os.path.join(folder, name)) + "\n"


def write_record(folder: Path, digest: str, outputs: list[str], problems: int) -> None:
    """Note in the folder what it was prepared from and what was written."""
    hashes = {name: file_digest(folder / name) for name in outputs}
    record = {"fingerprint": digest, "problems": problems, "outputs": hashes}
    write_text(json.dumps(record, indent=1) + "\n", folder / RECORD)


def matching_record(folder: Path, digest: str) -> dict[str, Any] | None:
    """Return the folder's note if it was prepared from the same, and its files are as they were written."""
    try:
        record = json.loads((folder / RECORD).read_text())
        same = record["fingerprint"] == digest and all(
            file_digest(folder / name) == expected for name, expected in record["outputs"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if same else None


def written_before(folder: Path) -> list[str]:
    """Return the names of the files that an earlier preparation of the folder wrote."""
    try:
        return [name for name in json.loads((folder / RECORD).read_text())["outputs"] if ".." not in name]
    except (OSError, ValueError, KeyError, TypeError):
        return []
