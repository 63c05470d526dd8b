"""Finds the files of WSJ0 and WSJ1, as discs or merged, ignoring case."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError

_DISC = re.compile(r"(11|13)[-_.](\d{1,2})[-_.]1", re.IGNORECASE)
CORPORA = ("wsj0", "wsj1")
DISCS = {"wsj0": "11-1.1 … 11-15.1", "wsj1": "13-1.1 … 13-34.1"}

# Discs reported as missing, with their use.
NEEDED_DISCS = {
    "11-13.1": "the indices of WSJ0",
    "11-2.1": "speakers of si_tr_s",
    "13-34.1": "the indices of WSJ1",
    "13-32.1": "the index of eval93 and the language models",
    "13-33.1": "the audio of eval93",
}


@dataclass(frozen=True)
class Distribution:
    """A copy of the corpus.

    Attributes:
        root: the folder given as `corpus=`.
        discs: disc folders by name, `11-13.1`; empty: merged into `wsj0` and `wsj1`.
        files: paths on disk by lower-case name, `11-13.1/wsj0/…` or `wsj0/…`.
    """

    root: Path
    discs: dict[str, Path]
    files: dict[str, str]

    def find(self, disc: str, path: str) -> str | None:
        """Return the path of a file on disk; None if it is missing.

        Args:
            disc: name of the disc, `11-13.1`; ignored in a merged copy.
            path: path below the disc, `wsj0/doc/…`, in any case.
        """
        name = path.lower().lstrip("/")
        return self.files.get(f"{disc}/{name}" if self.discs else name)

    def ending(self, suffix: str) -> Iterator[tuple[str, str]]:
        """Return (lower-case name, path on disk) of all files with a suffix."""
        return ((name, path) for name, path in self.files.items() if name.endswith(suffix))

    def missing_parts(self) -> list[str]:
        """Return a message for each missing disc or corpus, with its use."""
        if self.discs:
            missing = [(disc, use) for disc, use in NEEDED_DISCS.items() if disc not in self.discs]
            return [f"{self.root}: disc {disc} is missing: it has {use}" for disc, use in missing]
        there = {name.partition("/")[0] for name in self.files}
        return [
            f"{self.root}: {corpus} is missing (merged from the discs {DISCS[corpus]})"
            for corpus in CORPORA
            if corpus not in there
        ]


def disc_name(written: str) -> str | None:
    """Return a disc's canonical name, `11_13_1` → `11-13.1`; None if it isn't a disc."""
    match = _DISC.fullmatch(written.strip())
    return f"{match[1]}-{int(match[2])}.1" if match else None


def find_distribution(corpus: str) -> Distribution:
    """List the files of the folder given as `corpus=`.

    Raises:
        UserError: the folder is missing, is a single disc or corpus, or has other content.
    """
    if not corpus:
        raise UserError(
            "corpus= is empty: name the folder with the discs (11-1.1 …, 13-1.1 …) or with wsj0 and wsj1"
        )
    root = Path(corpus)
    if not root.is_dir():
        raise UserError(f"corpus={corpus}: expected a folder with discs of WSJ or wsj0 and wsj1, found none")
    # The name as given, without following links; `.` is resolved.
    place = root.absolute() if root.name else root.resolve()
    if disc := disc_name(place.name):
        raise UserError(
            f"corpus={corpus}: this looks like disc {disc}; the parent is needed: corpus={place.parent}"
        )
    if place.name.lower() in CORPORA and not _merged(root):
        raise UserError(
            f"corpus={corpus}: this looks like {place.name} alone; the parent, with wsj0 and wsj1, is "
            f"needed: corpus={place.parent}"
        )
    if discs := _discs(root):
        return Distribution(root, discs, dict(_listing(discs)))
    if merged := _merged(root):
        return Distribution(root, {}, dict(_listing(merged)))
    found = ", ".join(sorted(os.listdir(root))[:5]) or "nothing"
    raise UserError(
        f"corpus={corpus}: expected discs (folders 11-1.1 …, 13-1.1 …) or wsj0 and wsj1, found {found}"
    )


def _discs(root: Path) -> dict[str, Path]:
    """Return the disc folders up to three levels below `root`: `LDC93S6B/csr_1_senn_d1/11-1.1`."""
    discs: dict[str, Path] = {}
    level = [root]
    for _ in range(3):
        level = [child for folder in level for child in _folders(folder)]
        for folder in level:
            if (disc := disc_name(folder.name)) and discs.setdefault(disc, folder) != folder:
                raise UserError(
                    f"{root}: expected disc {disc} once, found {discs[disc]} and {folder}: make a folder "
                    f"with a link to each disc to use, `ln -s {folder} {disc}`"
                )
        level = [folder for folder in level if not disc_name(folder.name)]
    return discs


def _merged(root: Path) -> dict[str, Path]:
    """Return the folders `wsj0` and `wsj1`, if they exist."""
    return {folder.name.lower(): folder for folder in _folders(root) if folder.name.lower() in CORPORA}


def _folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir())


def _listing(places: dict[str, Path]) -> Iterator[tuple[str, str]]:
    for name, place in places.items():
        base = str(place)
        for folder, _, files in os.walk(base, followlinks=True):
            prefix = name + folder[len(base) :].replace(os.sep, "/").lower() + "/"
            for file in files:
                yield prefix + file.lower(), f"{folder}{os.sep}{file}"
