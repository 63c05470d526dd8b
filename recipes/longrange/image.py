"""Image: the class of a picture, read as its grey pixels, row by row.

As in Long Range Arena (Tay et al. 2021), where the pictures are CIFAR-10's (Krizhevsky 2009), 32 × 32 pixels
in grey: from CIFAR-10's binary files, from any folder of pictures, or, without either, generated shapes.
"""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
from asr_recipes.longrange.items import FIXED_SEED, Item, ItemSource, randomness
from asr_recipes.longrange.labelled import LabelledFolder
from numpy.typing import NDArray
from PIL import Image

from asr.errors import UserError
from asr.files import digest, file_digest, require_file

CIFAR_SIDE = 32
CIFAR_FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
CIFAR_LABELS = 10
CIFAR_RECORD = 1 + 3 * CIFAR_SIDE**2  # bytes: a label; red, green and blue of all pixels
HELD_OUT = 10  # the last tenth of CIFAR-10's training pictures is for development, as in Long Range Arena
GREY = (0.2989, 0.587, 0.114)  # shares of red, green and blue, as in TensorFlow's rgb_to_grayscale
SUFFIXES = {".png", ".bmp", ".gif", ".jpg", ".jpeg", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}

NOISE = 24  # largest deviation of a pixel's grey value in generated pictures
CONTRAST = 60  # smallest difference between the grey values of a shape and its background
Shape = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]
# Whether points belong to a shape, which reaches from −1 to 1 in both directions: y downwards, x rightwards.
SHAPES: dict[str, Shape] = {
    "disc": lambda y, x: y**2 + x**2 <= 1,
    "ring": lambda y, x: (y**2 + x**2 <= 1) & (y**2 + x**2 >= 0.4),
    "square": lambda y, x: np.maximum(abs(y), abs(x)) <= 0.85,
    "frame": lambda y, x: (np.maximum(abs(y), abs(x)) <= 0.9) & (np.maximum(abs(y), abs(x)) >= 0.55),
    "diamond": lambda y, x: abs(y) + abs(x) <= 1,
    "triangle": lambda y, x: (y <= 0.8) & (abs(x) <= (y + 1) / 1.8),
    "plus": lambda y, x: (np.minimum(abs(y), abs(x)) <= 0.3) & (np.maximum(abs(y), abs(x)) <= 1),
    "cross": lambda y, x: (abs(abs(y) - abs(x)) <= 0.35) & (np.maximum(abs(y), abs(x)) <= 1),
    "bars": lambda y, x: (abs((3 * y) % 2 - 1) <= 0.5) & (np.maximum(abs(y), abs(x)) <= 1),
    "columns": lambda y, x: (abs((3 * x) % 2 - 1) <= 0.5) & (np.maximum(abs(y), abs(x)) <= 1),
}


class Shapes(ItemSource):
    """Generated pictures: one of ten shapes in two grey values, somewhere, with noise.

    Args:
        size: side of a picture in pixels.
        seed: random seed of the training items.
    """

    classes = len(SHAPES)
    values = 0

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        self.longest = size * size

    def count(self, split: str) -> None:
        """Return None: there is no end of items."""

    def item(self, split: str, index: int) -> Item:
        """Return the pixels of a picture and the number of its shape."""
        seed = self.seed if split == "train" else FIXED_SEED
        picture, label = draw_shape(randomness(split, seed, index), self.size)
        return Item((picture.reshape(-1),), label)

    def describe(self) -> str:
        """Return the task and the size."""
        return f"images of {self.size} × {self.size} pixels, {self.classes} shapes, generated"


def draw_shape(numbers: random.Random, size: int) -> tuple[NDArray[np.uint8], int]:
    """Draw a picture.

    Args:
        numbers: random numbers.
        size: side in pixels.

    Returns:
        Grey values [size, size], 0 … 255, and the number of the shape in `SHAPES`.

    Example:
        >>> picture, label = draw_shape(random.Random(3), 32)
        >>> picture.shape, list(SHAPES)[label]
        ((32, 32), 'square')
    """
    draw = numbers.random
    label = int(len(SHAPES) * draw())
    radius = size * (0.22 + 0.2 * draw())
    top, left = ((size - 2 * radius) * draw() for _ in range(2))
    rows, columns = np.mgrid[0:size, 0:size] + 0.5
    inside = list(SHAPES.values())[label]((rows - top) / radius - 1, (columns - left) / radius - 1)
    apart = CONTRAST + (255 - CONTRAST) * draw()
    dark = (255 - apart) * draw()
    bright_shape = draw() < 0.5
    grey = np.where(inside == bright_shape, dark + apart, dark)
    noise = NOISE * (2 * np.array([draw() for _ in range(size * size)]).reshape(size, size) - 1)
    return np.clip(grey + noise, 0, 255).astype(np.uint8), label


class CifarFiles(ItemSource):
    """CIFAR-10's binary files, `data_batch_{1 … 5}.bin` and `test_batch.bin`, in grey.

    Args:
        folder: folder with the files.
        size: side of a picture in pixels, 32.

    Raises:
        UserError: a file is missing or holds no whole pictures, or another size is wanted.
    """

    classes = CIFAR_LABELS
    values = 0

    def __init__(self, folder: Path, size: int) -> None:
        if size != CIFAR_SIDE:
            raise UserError(
                f"recipe.size={size}: expected {CIFAR_SIDE}, the side of the pictures in {folder}"
            )
        self.folder = folder
        self.longest = size * size
        self.records = {split: self._read(split) for split in CIFAR_FILES}

    def count(self, split: str) -> int:
        """Return the number of pictures."""
        return len(self._part(split))

    def item(self, split: str, index: int) -> Item:
        """Return the pixels of a picture and its label."""
        record = self._part(split)[index]
        colours = record[1:].reshape(3, -1)
        # Truncated after multiplication by 255.5, as TensorFlow converts grey values back to bytes.
        grey = np.tensordot(np.array(GREY), colours / 255.0, 1) * 255.5
        return Item((grey.astype(np.uint8),), int(record[0]))

    def describe(self) -> str:
        """Return the task, the folder and the number of pictures."""
        return f"CIFAR-10 in grey from {self.folder}, {self.count('train')} training images"

    def digest(self, split: str) -> str:
        """Return a hash of the split's files."""
        names = CIFAR_FILES["test" if split == "test" else "train"]
        return digest("\0".join(file_digest(self.folder / name) for name in names))

    def _part(self, split: str) -> NDArray[np.uint8]:
        if split == "test":
            return self.records["test"]
        records = self.records["train"]
        held_out = len(records) // HELD_OUT
        return records[-held_out:] if split == "dev" else records[: len(records) - held_out]

    def _read(self, split: str) -> NDArray[np.uint8]:
        parts = []
        for name in CIFAR_FILES[split]:
            path = self.folder / name
            require_file(path, "a binary file of CIFAR-10")
            found = np.fromfile(path, dtype=np.uint8)
            if not len(found) or len(found) % CIFAR_RECORD:
                raise UserError(
                    f"{path}: expected pictures of {CIFAR_RECORD:,} bytes each, found {len(found):,} bytes"
                )
            records = found.reshape(-1, CIFAR_RECORD)
            if (most := int(records[:, 0].max())) >= CIFAR_LABELS:
                raise UserError(f"{path}: expected labels 0 to {CIFAR_LABELS - 1}, found {most}")
            parts.append(records)
        return np.concatenate(parts)


class PictureFolder(LabelledFolder):
    """Pictures that are labelled by their folder, in grey and scaled to a square: see `LabelledFolder`.

    Args:
        folder: folder.
        size: side of a picture in pixels.
    """

    kind = "images"
    values = 0

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__(folder, size * size)
        self.size = size

    def accepts(self, path: Path) -> bool:
        """Return whether the name of a file is that of a picture."""
        return path.suffix.lower() in SUFFIXES

    def item(self, split: str, index: int) -> Item:
        """Return the pixels of a picture and its label."""
        path, label = self.files[split][index]
        try:
            with Image.open(path) as picture:
                grey = _grey(picture, path)
        except OSError as error:
            raise UserError(f"{path}: expected an image, found {error}") from None
        if grey.size != (self.size, self.size):
            grey = grey.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return Item((np.array(grey, dtype=np.uint8).reshape(-1),), label)


def _grey(picture: Image.Image, path: Path) -> Image.Image:
    """Return a picture in 8 bits of grey; raise UserError for modes without a known range."""
    if picture.mode in ("I", "F"):
        raise UserError(
            f"{path}: expected a picture of 8 or 16 bits, found mode {picture.mode}, whose range isn't known"
        )
    if picture.mode.startswith("I;16"):  # `convert` would clip all values above 255 to white
        return Image.fromarray((np.asarray(picture) // 257).astype(np.uint8))
    return picture.convert("L")


def image_source(folder: str, size: int, seed: int) -> ItemSource:
    """Return the pictures of `recipe.folder`; generated shapes without one."""
    if not folder:
        return Shapes(size, seed)
    if (Path(folder) / CIFAR_FILES["train"][0]).exists():
        return CifarFiles(Path(folder), size)
    return PictureFolder(Path(folder), size)
