"""Pathfinder: whether two discs lie on the same dashed curve.

Linsley et al. 2018, *Learning long-range spatial dependencies with horizontal gated recurrent units*, as in
Long Range Arena (Tay et al. 2021): an image holds two long curves, two discs and short distractors. The label
is 1 if the discs mark both ends of one curve, 0 if they mark one end of each. The distance between the discs
is the same for both labels, within a unit.

The images are drawn here, not by the authors' program. A unit is size / 32 pixels, at least 1. A dash is two
units long and one pixel wide, the gap to the next dash is one unit, and other curves keep a distance of more
than two units. Steps of at most `reach(size)` pixels in each direction thus follow a curve, and never lead to
another.
"""

import functools
import math
import random
from dataclasses import dataclass

import numpy as np
from asr_recipes.longrange.items import FIXED_SEED, Item, ItemSource, randomness
from numpy.typing import NDArray

from asr.errors import UserError

DISC = 255
DASH = 160  # grey value of all dashes: different values would tell which curve a dash belongs to
FEWEST_DASHES = 3  # with 2, discs on one curve are nearer than discs on two curves can be
BEND = 0.6  # maximum change of direction from dash to dash, in radians; more if there is no room
ALIKE = 1  # maximum difference between the distances of discs with label 1 and with label 0, in units
START_DISTANCE = 7  # units between the starts of the two curves
DISTRACTORS = 20  # dashes of distractors in an image of 32 × 32 units
TRIALS = 5  # directions to try for a dash
BACK = 2  # dashes to draw again if there is no room
STEPS = 4  # dashes to try for each dash of a curve
CURVE_TRIALS = 20  # starts to try for a curve
IMAGE_TRIALS = 100  # images to try before a curve counts as too long

Pixel = tuple[int, int]
Ends = tuple[Pixel, Pixel]


class Pathfinder(ItemSource):
    """Generated images.

    Args:
        size: side of the image in pixels.
        dashes: number of dashes in each of the two curves; distractors have a third.
        seed: random seed of the training items.

    Raises:
        UserError: two curves with so many dashes don't fit in an image, or so few would reveal the label.
    """

    classes = 2
    values = 0

    def __init__(self, size: int, dashes: int, seed: int) -> None:
        self.size = size
        self.dashes = dashes
        self.seed = seed
        self.longest = size * size
        if dashes < FEWEST_DASHES:
            raise UserError(
                f"recipe.dashes={dashes}: expected at least {FEWEST_DASHES}: with fewer, the distance of the "
                "discs tells the label"
            )
        draw_image(randomness("dev", FIXED_SEED, 0), size, dashes, IMAGE_TRIALS)

    def item(self, split: str, index: int) -> Item:
        """Return the pixels of an image and its label."""
        seed = self.seed if split == "train" else FIXED_SEED
        image, label = draw_image(randomness(split, seed, index), self.size, self.dashes)
        return Item(image.reshape(-1), label)

    def describe(self) -> str:
        """Return the task and the sizes."""
        return f"pathfinder of {self.size} × {self.size} pixels, curves of {self.dashes} dashes, generated"


def reach(size: int) -> int:
    """Return the largest step from dash to dash, in pixels in each direction, for a side of an image."""
    return _unit(size) + 1


def draw_image(
    numbers: random.Random, size: int, dashes: int, trials: int = 1_000_000
) -> tuple[NDArray[np.uint8], int]:
    """Draw an image.

    Args:
        numbers: random numbers.
        size: side in pixels.
        dashes: number of dashes in each of the two curves.
        trials: images to try until both curves fit.

    Returns:
        Grey values [size, size], 0 … 255, and the label, 0 or 1.

    Raises:
        UserError: the curves don't fit.

    Example:
        >>> image, label = draw_image(random.Random(0), 32, 6)
        >>> image.shape, label, int((image == DISC).sum())
        ((32, 32), 1, 18)
    """
    label = int(2 * numbers.random())
    for _ in range(trials):
        canvas = _Canvas(numbers, size)
        one = canvas.curve(dashes, beside=None)
        two = canvas.curve(dashes, beside=one[0]) if one else None
        if one and two:
            same, different = _ends_alike(one, two)
            if abs(math.dist(*same) - math.dist(*different)) <= ALIKE * canvas.unit:
                break
    else:
        raise UserError(f"recipe.dashes={dashes}: two such curves don't fit in {size} × {size} pixels")
    for _ in range(DISTRACTORS * size**2 // (32 * canvas.unit) ** 2 // max(1, dashes // 3)):
        canvas.curve(max(1, dashes // 3), beside=None, discs=False)
    for centre in same if label else different:
        canvas.paint(canvas.disc(centre), DISC)
    return canvas.image, label


@dataclass(frozen=True)
class _Dash:
    """A dash, with the position and the direction (radians) of the next one if the curve goes straight on."""

    pixels: list[Pixel]
    y: float
    x: float
    angle: float


class _Canvas:
    """An image, and the pixels that further curves must avoid."""

    def __init__(self, numbers: random.Random, size: int) -> None:
        self.numbers = numbers
        self.size = size
        self.unit = _unit(size)
        self.image = np.zeros((size, size), dtype=np.uint8)
        # An integer per row; its bits are pixels, 1 at the border and within two units of what is drawn.
        border, whole = 1 | 1 << size - 1, (1 << size) - 1
        self.taken = [whole, *[border] * (size - 2), whole]

    def curve(self, dashes: int, beside: Pixel | None, discs: bool = True) -> Ends | None:
        """Draw a curve that avoids the others; return its ends, or None if there is no room.

        Args:
            dashes: number of dashes.
            beside: pixel near which the curve starts; None: anywhere.
            discs: whether to keep room for discs at its ends.
        """
        for _ in range(CURVE_TRIALS):
            path = self._walk(dashes, self._start(beside), discs)
            if path:
                for dash in path:
                    self.paint(dash.pixels, DASH)
                    self._take(dash.pixels)
                ends = path[0].pixels[0], path[-1].pixels[-1]
                for end in ends if discs else ():
                    self._take(self.disc(end))
                return ends
        return None

    def paint(self, pixels: list[Pixel], grey: int) -> None:
        """Set pixels to a grey value."""
        for pixel in pixels:
            self.image[pixel] = grey

    def disc(self, centre: Pixel) -> list[Pixel]:
        """Return the pixels of a disc that is one and a half units in radius."""
        return [(centre[0] + y, centre[1] + x) for y, x in _disc_offsets(1.5 * self.unit)]

    def _start(self, beside: Pixel | None) -> _Dash:
        number = self.numbers.random
        if beside is None:
            y, x = self.size * number(), self.size * number()
        else:
            towards = 2 * math.pi * number()
            y = beside[0] + START_DISTANCE * self.unit * math.sin(towards)
            x = beside[1] + START_DISTANCE * self.unit * math.cos(towards)
        return _Dash([], y, x, 2 * math.pi * number())

    def _walk(self, dashes: int, start: _Dash, discs: bool) -> list[_Dash] | None:
        """Return the dashes of a curve, which is not yet drawn, or None if there is no room."""
        if not self._free([(round(start.y), round(start.x))]):
            return None
        former = [self.taken]  # before each dash but the last, which the next one may approach
        path = [start]
        try:
            for _ in range(STEPS * dashes):
                dash = self._next(path[-1], len(path) == 1, discs and len(path) in (1, dashes))
                if dash:
                    former.append(self.taken)
                    self.taken = self.taken.copy()
                    self._take(path[-1].pixels)
                    path.append(dash)
                    if len(path) > dashes:
                        return path[1:]
                else:
                    for _ in range(min(BACK, len(path) - 1)):
                        path.pop()
                        self.taken = former.pop()
                    if len(path) == 1:
                        return None
            return None
        finally:
            self.taken = former[0]

    def _next(self, last: _Dash, first: bool, disc: bool) -> _Dash | None:
        """Return a dash after the last one, or None if there is no room for it, and for a disc at its end."""
        reachable, end = reach(self.size), 0 if first else -1
        for trial in range(1 if first else TRIALS):
            bend = 0.0 if first else BEND * (1 + 2 * trial / TRIALS) * (2 * self.numbers.random() - 1)
            dy, dx = math.sin(last.angle + bend), math.cos(last.angle + bend)
            pixels = [(round(last.y + k * dy), round(last.x + k * dx)) for k in range(2 * self.unit)]
            linked = first or _distance(last.pixels[-1], pixels[0]) <= reachable
            if linked and self._free(pixels) and (not disc or self._free(self.disc(pixels[end]))):
                ahead = 3 * self.unit
                return _Dash(pixels, last.y + ahead * dy, last.x + ahead * dx, last.angle + bend)
        return None

    def _free(self, pixels: list[Pixel]) -> bool:
        inside = range(self.size)
        return all(y in inside and x in inside and not self.taken[y] >> x & 1 for y, x in pixels)

    def _take(self, pixels: list[Pixel]) -> None:
        margin = 2 * self.unit
        square = (1 << 2 * margin + 1) - 1
        for y, x in pixels:
            near = square << x >> margin
            for row in range(max(0, y - margin), min(self.size, y + margin + 1)):
                self.taken[row] |= near


def _ends_alike(one: Ends, two: Ends) -> tuple[Ends, Ends]:
    """Return both ends of one curve, and an end of each curve, so that their distances differ least."""
    different = [(a, b) for a in one for b in two]
    pairs = [(ends, pair) for ends in (one, two) for pair in different]
    return min(pairs, key=lambda pair: abs(math.dist(*pair[0]) - math.dist(*pair[1])))


@functools.cache
def _disc_offsets(radius: float) -> list[Pixel]:
    around = range(-math.ceil(radius), math.ceil(radius) + 1)
    return [(y, x) for y in around for x in around if y * y + x * x < radius * radius]


def _unit(size: int) -> int:
    return max(1, size // 32)


def _distance(one: Pixel, other: Pixel) -> int:
    return max(abs(one[0] - other[0]), abs(one[1] - other[1]))
