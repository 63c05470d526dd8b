"""Files written beside their final place, and put there together once all are whole."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from asr.files import atomic_text


class Drafts:
    """Files of a folder that are being written.

    Args:
        folder: where they will be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._drafts: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        """Return where to write the file `name` for now; its folder is made."""
        final = self.folder / name
        final.parent.mkdir(parents=True, exist_ok=True)
        self._drafts[name] = final.with_name(final.name + ".new")
        return self._drafts[name]

    def discard(self, name: str | None = None) -> None:
        """Remove one file, or all of them."""
        for draft in list(self._drafts) if name is None else [name]:
            self._drafts.pop(draft).unlink(missing_ok=True)

    def put_in_place(self, instead_of: Iterable[str]) -> list[str]:
        """Remove the files `instead_of`, rename all drafts to their names and return these, sorted."""
        for name in instead_of:
            (self.folder / name).unlink(missing_ok=True)
        for name, draft in self._drafts.items():
            draft.replace(self.folder / name)
        return sorted(self._drafts)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write tab-separated values with a header."""
    with atomic_text(path) as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
