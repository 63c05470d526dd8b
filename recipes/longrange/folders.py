"""Readers of Long Range Arena's public files, ListOps and Pathfinder, in their original layout."""

from pathlib import Path

import numpy as np
from asr_recipes.longrange.items import Item, ItemSource
from asr_recipes.longrange.listops import SYMBOLS
from PIL import Image

from asr.errors import UserError
from asr.files import digest, file_digest, require_file

LISTOPS_FILES = {"train": "basic_train.tsv", "dev": "basic_val.tsv", "test": "basic_test.tsv"}
HEADER = b"Source\tTarget"
SHARES = {"train": (0.0, 0.8), "dev": (0.8, 0.9), "test": (0.9, 1.0)}  # ranges of the images, as fractions


class Lines:
    """The expressions of a file, read one line at a time.

    Args:
        path: file.

    Raises:
        UserError: the file is missing or empty, or its header is unexpected.
    """

    def __init__(self, path: Path) -> None:
        require_file(path, "a file of Long Range Arena")
        self.path = path
        with path.open("rb") as file:
            if (found := file.readline().rstrip(b"\r\n")) != HEADER:
                raise UserError(f"{path}: expected the header {HEADER.decode()!r}, found {found[:60]!r}")
            ends = [file.tell()]
            for line in file:
                ends.append(ends[-1] + len(line))
        self.starts = np.array(ends[:-1], dtype=np.int64)
        if not len(self.starts):
            raise UserError(f"{path}: expected lines, found none")

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.starts[index])
            return file.readline().rstrip(b"\r\n")

    def name(self, index: int) -> str:
        """Return file and line number, for messages."""
        return f"{self.path}:{index + 2}"


class ListOpsFiles(ItemSource):
    """`basic_{train,val,test}.tsv`: an expression in parentheses, a tab, and its value.

    Args:
        folder: folder with the files; the one of the test split may be missing.
        longest: maximum number of symbols; a longer expression is an error.
    """

    classes = 10
    values = len(SYMBOLS)

    def __init__(self, folder: Path, longest: int) -> None:
        self.folder, self.longest = folder, longest
        self.files = {split: folder / name for split, name in LISTOPS_FILES.items()}
        self.found = {split: Lines(self.files[split]) for split in ("train", "dev")}

    def lines(self, split: str) -> Lines:
        """Return the lines of a split; raise UserError if its file is missing, empty or of another kind."""
        if split not in self.found:
            self.found[split] = Lines(self.files[split])
        return self.found[split]

    def count(self, split: str) -> int:
        """Return the number of lines."""
        return len(self.lines(split))

    def item(self, split: str, index: int) -> Item:
        """Return the symbols of an expression, without parentheses, and its value."""
        lines = self.lines(split)
        source, _, value = lines[index].decode(errors="replace").partition("\t")
        words = [word for word in source.split() if word not in "()"]
        if not words or not set(words) <= set(SYMBOLS) or value not in SYMBOLS[:10]:
            raise UserError(f"{lines.name(index)}: expected an expression, a tab and a digit")
        if len(words) > self.longest:
            raise UserError(f"{lines.name(index)}: {len(words)} symbols, raise recipe.length={self.longest}")
        return Item(np.array([SYMBOLS.index(word) for word in words], dtype=np.uint8), int(value))

    def describe(self) -> str:
        """Return the task and the folder."""
        return f"ListOps from {self.folder}, {self.count('train')} training items"

    def digest(self, split: str) -> str:
        """Return the hash of the split's file."""
        return file_digest(self.files[split])


class PathfinderFolder(ItemSource):
    """Images such as `pathfinder32/curv_contour_length_14`, listed in `metadata/*.npy`, which are text.

    The first 80 % of the images are for training, 10 % for development, 10 % for tests. Empty files are left
    out.

    Args:
        folder: folder with `imgs` and `metadata`.
        size: side of the images in pixels.

    Raises:
        UserError: no metadata, a line that can't be read, or images of another size.
    """

    classes = 2
    values = 0

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.longest = size * size
        self.size = size
        lists = sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.name), path.name))
        if not lists:
            raise UserError(f"{folder}: expected metadata/*.npy, found none")
        listed = [entry for path in lists for entry in self._read(path)]
        self.images = [entry for entry in listed if require_file(entry[0], "an image")]
        self.left_out = len(listed) - len(self.images)
        if not self.images:
            raise UserError(f"{folder / 'metadata'}: expected images, found none")
        self.item("train", 0)

    def count(self, split: str) -> int:
        """Return the number of images."""
        start, end = self._bounds(split)
        return end - start

    def item(self, split: str, index: int) -> Item:
        """Return the pixels of an image and its label."""
        path, label = self.images[self._bounds(split)[0] + index]
        try:
            with Image.open(path) as image:
                grey = np.array(image.convert("L"))
        except OSError as error:
            raise UserError(f"{path}: expected an image, found {error}") from None
        if grey.shape != (self.size, self.size):
            found = " × ".join(map(str, grey.shape))
            raise UserError(f"{path}: expected recipe.size={self.size} pixels per side, found {found}")
        return Item(grey.reshape(-1), label)

    def describe(self) -> str:
        """Return the task, the folder and what was left out."""
        words = f"pathfinder from {self.folder}, {self.count('train')} training images"
        return words + (f", {self.left_out} empty files left out" if self.left_out else "")

    def digest(self, split: str) -> str:
        """Return a hash of the lists of images, which all splits share."""
        return digest("\0".join(map(file_digest, sorted((self.folder / "metadata").glob("*.npy")))))

    def _bounds(self, split: str) -> tuple[int, int]:
        low, high = SHARES[split]
        return round(low * len(self.images)), round(high * len(self.images))

    def _read(self, path: Path) -> list[tuple[Path, int]]:
        """Return the paths and labels in a list: lines of folder, name, number, label and further values."""
        images = []
        for number, line in enumerate(path.read_bytes().decode("latin-1").splitlines(), start=1):
            fields = line.split(" ")
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise UserError(
                    f"{path}:{number}: expected folder, name, number and label, found {line[:60]!r}"
                )
            images.append((self.folder / fields[0] / fields[1], int(fields[3])))
        return images
