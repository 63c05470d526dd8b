"""Texts as bytes, `.gz` unpacked: classes are folders of files; pairs are passages of one file or of two."""

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from asr_recipes.longrange.folders import text_values
from asr_recipes.longrange.items import FIXED_SEED, SPLITS, Item, ItemSource, randomness

from asr.errors import UserError
from asr.files import digest, require_file
from asr.text.files import unreadable

SPLIT_FOLDERS = {"train": ("train",), "dev": ("dev", "val"), "test": ("test",)}
HELD_OUT = 10  # without a folder of their own, a tenth of the files is for development, another one for tests
SHORTEST = 32  # bytes of a file from which pairs of passages are drawn


class TextFolder(ItemSource):
    """The bytes of text files, labelled by their folder.

    The files are in `<split>/<label>/`, with split `train`, `dev` or `val`, and `test`, such as the IMDB
    reviews of Long Range Arena. These have no development texts: without `dev` or `val`, a hash of its name
    sets aside a tenth of the files in `train`, so that no choice rests on test texts. In a folder without
    `train`, the files are in `<label>/`, and the hash decides all splits. Labels without test texts (without
    a folder `test`: without development texts) are left out.

    Args:
        folder: folder.
        longest: the rest of a text is cut off, in bytes.

    Raises:
        UserError: fewer than two labels, more than 256, or a label without training texts.
    """

    values = 256

    def __init__(self, folder: Path, longest: int) -> None:
        self.folder = folder
        self.longest = longest
        found = {split: _labelled(folder, split) for split in SPLIT_FOLDERS}
        self.labels = sorted(found["test"] or found["dev"])
        self.classes = len(self.labels)
        if not 2 <= self.classes <= 256:
            raise UserError(
                f"{folder}: expected 2 to 256 labels with texts to evaluate, found {self.classes}"
            )
        for label in self.labels:
            if label not in found["train"]:
                raise UserError(f"{folder}: expected training texts of {label!r}, found none")
        self.texts = {
            split: [(path, label) for label, name in enumerate(self.labels) for path in members.get(name, [])]
            for split, members in found.items()
        }

    def count(self, split: str) -> int:
        """Return the number of texts."""
        return len(self.texts[split])

    def item(self, split: str, index: int) -> Item:
        """Return the bytes of a text and its label."""
        path, label = self.texts[split][index]
        return Item((text_values(_content(path, self.longest), self.longest),), label)

    def describe(self) -> str:
        """Return the folder, the number of labels and of texts."""
        counts = f"{self.count('train')} training texts, {self.count('dev')} development texts"
        return f"texts from {self.folder}, {self.classes} labels, {counts}"

    def digest(self, split: str) -> str:
        """Return a hash of the names and sizes of the split's files."""
        return _digest(path for path, _ in self.texts[split])


class PassagePairs(ItemSource):
    """Passages of the first half of a file and of the second half of the same or another file, as bytes.

    The label is 1 if they are from one file. Pairs are drawn from (split, seed, number); a hash of its name
    decides the split of a file.

    Args:
        folder: folder with text files, at any depth.
        longest: maximum length of a passage in bytes.
        seed: random seed of the training pairs.

    Raises:
        UserError: fewer than two files in a split.
    """

    classes, values, towers = 2, 256, 2

    def __init__(self, folder: Path, longest: int, seed: int) -> None:
        self.folder = folder
        self.longest = longest
        self.seed = seed
        files = [path for path in _files(folder) if path.stat().st_size >= SHORTEST]
        self.texts: dict[str, list[Path]] = {split: [] for split in SPLIT_FOLDERS}
        for path in files:
            self.texts[_split_by_name(folder, path)].append(path)
        for split, members in self.texts.items():
            if len(members) < 2:
                raise UserError(
                    f"{folder}: expected two files of {SHORTEST} bytes for {split}, found {len(members)}"
                )

    def count(self, split: str) -> None:
        """Return None: there is no end of pairs."""

    def item(self, split: str, index: int) -> Item:
        """Return two passages and whether they are from one file."""
        numbers = randomness(split, self.seed if split == "train" else FIXED_SEED, index)
        texts = self.texts[split]
        label = int(2 * numbers.random())
        one = int(len(texts) * numbers.random())
        other = one if label else (one + 1 + int((len(texts) - 1) * numbers.random())) % len(texts)
        first, second = _content(texts[one]), _content(texts[other])
        halves = first[: len(first) // 2], second[len(second) // 2 :]
        starts = [int((max(0, len(half) - self.longest) + 1) * numbers.random()) for half in halves]
        passages = [half[start:] for half, start in zip(halves, starts, strict=True)]
        return Item(tuple(text_values(passage, self.longest) for passage in passages), label)

    def describe(self) -> str:
        """Return the folder and the number of files."""
        counts = ", ".join(f"{len(members)} {split}" for split, members in self.texts.items())
        return f"pairs of passages from {self.folder}, files: {counts}"

    def digest(self, split: str) -> str:
        """Return a hash of the names and sizes of the split's files."""
        return _digest(self.texts[split])


def _labelled(folder: Path, split: str) -> dict[str, list[Path]]:
    """Return the files of each label in a split, sorted."""
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
    found = {path.name: [x for x in _files(path) if _split_by_name(folder, x) in hashes] for path in names}
    return {label: paths for label, paths in found.items() if paths}


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a folder of texts, found none")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _content(path: Path, size: int = -1) -> bytes:
    """Return the first bytes of a text, all by default, unpacked if its name ends in `.gz`."""
    require_file(path, "a text")
    try:
        # Two fifths of the texts in /usr/share/doc are packed.
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None


def _split_by_name(folder: Path, path: Path) -> str:
    share = int(digest(str(path.relative_to(folder)), 64), 16) % HELD_OUT
    return {0: "dev", 1: "test"}.get(share, "train")


def _digest(paths: Iterable[Path]) -> str:
    """Return a hash of the names and sizes of files."""
    return digest("\0".join(f"{path}\t{path.stat().st_size}" for path in paths))
