"""Makes a folder once for all processes of the tests: a corpus, a model, compiled libraries."""

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock


def once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder, made by the first process that asks for it; others wait. Tests only read it."""
    made = folder.with_name(f"{folder.name}.made")
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
            make(folder)
            made.touch()
    return folder


def built(cache: Path, name: str, inputs: Iterable[Path | str], build: Callable[[Path], object]) -> Path:
    """Return a folder that also later test runs share, until its inputs change.

    Args:
        cache: folder of all builds.
        name: name of the build.
        inputs: files and words that determine the result: sources, headers, flags, versions.
        build: function that fills the folder, which is empty.
    """
    digest = hashlib.sha256()
    for item in inputs:
        digest.update(item.read_bytes() if isinstance(item, Path) else item.encode())
        digest.update(b"\0")
    folder = cache / f"{name}-{digest.hexdigest()[:16]}"
    for old in cache.glob(f"{name}-*"):  # of other sources
        if not old.name.startswith(folder.name):
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)

    def make(folder: Path) -> None:
        folder.mkdir()
        build(folder)

    return once(folder, make)
