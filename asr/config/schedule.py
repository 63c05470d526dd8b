"""Schedules of frame rates: `1,2*3` is the full rate in the first layer, and half of it in three more."""

import itertools
import re
from collections.abc import Sequence

from asr.errors import UserError

LARGEST = 64  # maximum number of encoder frames per frame of a layer


def check_schedule(frames: str) -> None:
    """Raise UserError unless a schedule can be parsed; see `layer_factors`."""
    _runs(frames)


def layer_factors(frames: str, layers: int) -> list[int]:
    """Return, for each layer, how many encoder frames one of its frames stands for.

    Args:
        frames: a factor for each layer, `2*3` for three, or a single one for all: `1,2*3`, `2`.
        layers: number of layers.

    Raises:
        UserError: the schedule can't be parsed, or has another number of layers.

    Example:
        >>> layer_factors("1,2*3", 4), layer_factors("2", 4)
        ([1, 2, 2, 2], [2, 2, 2, 2])
    """
    runs = _runs(frames)
    if len(runs) == 1 and runs[0][1] is None:
        return [runs[0][0]] * layers
    found = [factor for factor, count in runs for _ in range(count or 1)]
    if len(found) != layers:
        raise UserError(f"frames={frames}: expected factors for {layers} layers, found {len(found)}")
    return found


def joined_factors(factors: Sequence[int]) -> str:
    """Return the schedule of layers with these factors.

    Example:
        >>> joined_factors([1, 2, 2, 2]), joined_factors([2, 2])
        ('1,2*3', '2')
    """
    runs = [(factor, len(list(run))) for factor, run in itertools.groupby(factors)]
    if len(runs) == 1:
        return str(runs[0][0])
    return ",".join(f"{factor}*{count}" if count > 1 else str(factor) for factor, count in runs)


def _runs(frames: str) -> list[tuple[int, int | None]]:
    """Return the factors, each with its number of layers; None if not given."""
    if not isinstance(frames, str):
        raise UserError(f"frames={frames!r:.60}: expected text, e.g. 1,2*3")
    found: list[tuple[int, int | None]] = []
    for part in frames.split(","):
        match = re.fullmatch(r"([1-9]\d?)(?:\*([1-9]\d{0,3}))?", part)
        if not match or int(match[1]) > LARGEST:
            raise UserError(
                f"frames={frames}: expected a factor of 1 … {LARGEST} for each layer (1,2*3) or for all (2), "
                f"found {part!r}"
            )
        found.append((int(match[1]), int(match[2]) if match[2] else None))
    return found
