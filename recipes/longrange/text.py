"""Texts as bytes, `.gz` unpacked: classes are folders of files; pairs are passages of one file or of two."""

import gzip
import zlib
from pathlib import Path

from asr_recipes.longrange.folders import text_values
from asr_recipes.longrange.items import FIXED_SEED, SPLITS, Item, ItemSource, randomness
from asr_recipes.longrange.labelled import LabelledFolder, digest_of_sizes, files_below, split_by_name

from asr.errors import UserError
from asr.files import require_file
from asr.text.files import unreadable

SHORTEST = 32  # bytes of a file from which pairs of passages are drawn


class TextFolder(LabelledFolder):
    """The bytes of text files, labelled by their folder: see `LabelledFolder`.

    Args:
        folder: folder.
        longest: the rest of a text is cut off, in bytes.
    """

    kind = "texts"
    values = 256

    def accepts(self, path: Path) -> bool:
        """Return True: any file is a text."""
        return True

    def item(self, split: str, index: int) -> Item:
        """Return the bytes of a text and its label."""
        path, label = self.files[split][index]
        return Item((text_values(_content(path, self.longest), self.longest),), label)


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
        files = [path for path in files_below(folder) if path.stat().st_size >= SHORTEST]
        self.texts: dict[str, list[Path]] = {split: [] for split in SPLITS}
        for path in files:
            self.texts[split_by_name(folder, path)].append(path)
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
        return digest_of_sizes(self.texts[split])


def _content(path: Path, size: int = -1) -> bytes:
    """Return the first bytes of a text, all by default, unpacked if its name ends in `.gz`."""
    require_file(path, "a text")
    try:
        # Two fifths of the texts in /usr/share/doc are packed.
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None
