"""Schedules of frame rates.

`1,2*3` is the full rate in the first layer, and half of it in three more, `1,2*` in all others;
`merge-0.4` joins similar frames.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from asr import config
from asr.config.schema import option
from asr.errors import UserError

LARGEST = 64  # maximum number of encoder frames per frame of a layer
MERGE = "merge-"
REST = 0  # number of layers of `2*`
MERGED_PADDING = re.compile(r"pad-([1-9]\d{0,3})")  # see `asr.model.whisper`


@dataclass(frozen=True)
class Merging:
    """Neighbouring frames that are joined by similarity; see `asr.model.frames.similar_runs`."""

    share: float = option(0.5, help="share of the frames that join the one before", affects="result")
    cap: int = option(
        2, help="longest run of joined frames", affects="result", minimum=2, maximum=LARGEST, unit="frames"
    )
    at: int = option(2, help="layer from which on frames are joined", affects="result", minimum=1)

    def check(self) -> None:
        """Raise UserError for a share that runs of `cap` frames can't reach."""
        if self.share > 1 - 1 / self.cap:
            most = 1 - 1 / self.cap
            raise UserError(
                f"expected a share of at most {most:.3g} with cap={self.cap}, found {self.share:g}"
            )

    def __str__(self) -> str:
        """Return the schedule."""
        return f"{MERGE}{self.share:g}:cap={self.cap},at={self.at}"


Factor = int | Merging


def check_schedule(frames: str) -> None:
    """Raise UserError unless a schedule can be parsed; see `layer_factors`."""
    _parsed(frames)


def layer_factors(frames: str, layers: int) -> list[Factor]:
    """Return, for each layer, how many encoder frames one of its frames stands for.

    Args:
        frames: a factor for each layer, `2*3` for three, `2*` for all that are left, or a single one for all:
            `1,2*3`, `1,2*`, `2`; or a share of the frames that are joined by similarity, with the options of
            `Merging`.
        layers: number of layers.

    Raises:
        UserError: the schedule can't be parsed, or has another number of layers.

    Example:
        >>> layer_factors("1,2*3", 4), layer_factors("1,2*", 3), layer_factors("2", 4)
        ([1, 2, 2, 2], [1, 2, 2], [2, 2, 2, 2])
        >>> layer_factors("merge-0.4:cap=3", 3)[1:]
        [Merging(share=0.4, cap=3, at=2), Merging(share=0.4, cap=3, at=2)]
    """
    runs = _parsed(frames)
    if isinstance(runs, Merging):
        if runs.at > layers:
            raise UserError(f"frames={frames}: expected one of {layers} layers, found at={runs.at}")
        full = runs.at - 1 if runs.share else layers
        return [1] * full + [runs] * (layers - full)
    if len(runs) == 1 and runs[0][1] is None:
        return [runs[0][0]] * layers
    left = layers - sum(count or 1 for _, count in runs if count != REST)
    found: list[Factor] = [
        factor for factor, count in runs for _ in range(left if count == REST else count or 1)
    ]
    if len(found) != layers:
        raise UserError(f"frames={frames}: expected factors for {layers} layers, found {len(found)}")
    return found


def joined_factors(factors: Sequence[Factor]) -> str:
    """Return the schedule of layers with these factors.

    Example:
        >>> joined_factors([1, 2, 2, 2]), joined_factors([2, 2])
        ('1,2*3', '2')
    """
    if isinstance(factors[-1], Merging):
        return str(factors[-1])
    runs = [(factor, len(list(run))) for factor, run in itertools.groupby(factors)]
    if len(runs) == 1:
        return str(runs[0][0])
    return ",".join(f"{factor}*{count}" if count > 1 else str(factor) for factor, count in runs)


def _parsed(frames: str) -> Merging | list[tuple[int, int | None]]:
    """Return the merging, or the factors, each with its number of layers: None if not given, or `REST`."""
    if not isinstance(frames, str):
        raise UserError(f"frames={frames!r:.60}: expected text, e.g. 1,2*3")
    if frames.startswith(MERGE):
        share, *options = re.split("[:,]", frames.removeprefix(MERGE))
        try:
            return config.parse(Merging, [f"share={share}", *options])
        except UserError as error:
            raise UserError(f"frames={frames}: {error}") from None
    if MERGED_PADDING.fullmatch(frames):
        raise UserError(
            f"frames={frames}: expected inputs that Whisper pads to 30 s (asr compare model=… data=…), found "
            "others"
        )
    found: list[tuple[int, int | None]] = []
    for part in frames.split(","):
        match = re.fullmatch(r"([1-9]\d?)(\*([1-9]\d{0,3})?)?", part)
        if not match or int(match[1]) > LARGEST:
            raise UserError(
                f"frames={frames}: expected a factor of 1 … {LARGEST} for each layer (1,2*3; 1,2*) or for "
                f"all (2), found {part!r}"
            )
        found.append((int(match[1]), int(match[3] or REST) if match[2] else None))
    if [count for _, count in found].count(REST) > 1:
        raise UserError(
            f"frames={frames}: expected one number of layers to be left out, found several; quotes separate "
            "the schedules of a list: ['1,2*','1,4*']"
        )
    return found
