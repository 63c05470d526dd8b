"""Folders whose files are named by their label, with or without folders for the splits."""

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path

from asr_recipes.longrange.items import SPLITS, ItemSource

from asr.errors import UserError
from asr.files import digest

SPLIT_FOLDERS = {"train": ("train",), "dev": ("dev", "val"), "test": ("test",)}
HELD_OUT = 10  # without a folder of their own, a tenth of the files is for development, another one for tests


class LabelledFolder(ItemSource):
    """Files that are labelled by their folder.

    They are in `<split>/<label>/`, with split `train`, `dev` or `val`, and `test`. Without `dev` or `val`, as
    in the IMDB reviews of Long Range Arena, a hash of its name sets aside a tenth of the files in `train`, so
    that no choice rests on test items. In a folder without `train`, the files are in `<label>/`, and the hash
    decides all splits. Labels without test files (without a folder `test`: without development files) are
    left out.

    Args:
        folder: folder.
        longest: maximum length of a sequence.

    Raises:
        UserError: fewer than two labels, more than 256, or a label without training files.
    """

    kind = "files"  # in messages

    def __init__(self, folder: Path, longest: int) -> None:
        self.folder = folder
        self.longest = longest
        found = {split: self._labelled(split) for split in SPLIT_FOLDERS}
        self.labels = sorted(found["test"] or found["dev"])
        self.classes = len(self.labels)
        if not 2 <= self.classes <= 256:
            raise UserError(
                f"{folder}: expected 2 to 256 labels with {self.kind} to evaluate, found {self.classes}"
            )
        for label in self.labels:
            if label not in found["train"]:
                raise UserError(f"{folder}: expected training {self.kind} of {label!r}, found none")
        self.files = {
            split: [(path, label) for label, name in enumerate(self.labels) for path in members.get(name, [])]
            for split, members in found.items()
        }

    @abstractmethod
    def accepts(self, path: Path) -> bool:
        """Return whether a file is an item."""

    def count(self, split: str) -> int:
        """Return the number of files."""
        return len(self.files[split])

    def describe(self) -> str:
        """Return the folder, the number of labels and of files."""
        counts = f"{self.count('train')} training {self.kind}, {self.count('dev')} development {self.kind}"
        return f"{self.kind} from {self.folder}, {self.classes} labels, {counts}"

    def digest(self, split: str) -> str:
        """Return a hash of the names and sizes of the split's files."""
        return digest_of_sizes(path for path, _ in self.files[split])

    def _labelled(self, split: str) -> dict[str, list[Path]]:
        """Return the files of each label in a split, sorted."""
        folder = self.folder
        own = {
            name: next((folder / x for x in places if (folder / x).is_dir()), None)
            for name, places in SPLIT_FOLDERS.items()
        }
        place: Path | None = folder
        hashes = {split}  # the files to take, by the split that a hash of their names decides
        if own["train"] and split != "test" and not own["dev"]:
            place = own["train"]
            hashes = {"dev"} if split == "dev" else {"train", "test"}
        elif own["train"]:
            place, hashes = own[split], set(SPLITS)
        names = sorted(path for path in place.iterdir() if path.is_dir()) if place and place.is_dir() else []
        found = {
            path.name: [
                x for x in files_below(path) if self.accepts(x) and split_by_name(folder, x) in hashes
            ]
            for path in names
        }
        return {label: paths for label, paths in found.items() if paths}


def files_below(folder: Path) -> list[Path]:
    """Return the files at any depth, sorted; raise UserError if there is no such folder."""
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a folder, found none")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def split_by_name(folder: Path, path: Path) -> str:
    """Return the split that a hash of a file's name decides."""
    share = int(digest(str(path.relative_to(folder)), 64), 16) % HELD_OUT
    return {0: "dev", 1: "test"}.get(share, "train")


def digest_of_sizes(paths: Iterable[Path]) -> str:
    """Return a hash of the names and sizes of files."""
    return digest("\0".join(f"{path}\t{path.stat().st_size}" for path in paths))
