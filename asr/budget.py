"""A training's length as a time: `10min` of training steps, by the wall clock or in CPU seconds."""

import re
from dataclasses import dataclass

from asr.errors import UserError

CLOCKS = ("wall", "cpu")
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class TimeBudget:
    """Time that training steps may take, waiting for data included; validation and checkpoints are free.

    Attributes:
        seconds: of it.
        clock: `wall`, or `cpu`: seconds of all threads of the training process. The latter is the fair one
            on a machine that others use as well.
    """

    seconds: float
    clock: str = "wall"

    def __str__(self) -> str:
        unit = "CPU seconds" if self.clock == "cpu" else "s"
        return f"{self.seconds:g} {unit} of training"


def parse_budget(text: str, clock: str) -> TimeBudget | None:
    """Read a time such as `90s`, `10min`, `1.5h`; None for an empty one.

    Raises:
        UserError: not a time, or an unknown clock.

    Example:
        >>> parse_budget("10min", "cpu")
        TimeBudget(seconds=600.0, clock='cpu')
    """
    if clock not in CLOCKS:
        raise UserError(f"trainer.budget_clock={clock!r}: expected {' | '.join(CLOCKS)}")
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|h|d)", text)
    if not found or float(found[1]) == 0:
        raise UserError(f"trainer.budget={text!r}: expected a time such as 90s, 10min, 1.5h or 2d")
    return TimeBudget(float(found[1]) * SECONDS[found[2]], clock)
