"""Time budgets of training, such as `10min`."""

import re
from dataclasses import dataclass

from asr.errors import UserError

CLOCKS = ("wall", "cpu")
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class TimeBudget:
    """Maximum time for training steps and loading data; validation and checkpoints don't count.

    Attributes:
        seconds: length of the budget.
        clock: `wall`, or `cpu` for the CPU time of all threads of the training process, which other load
            on the machine affects less.
    """

    seconds: float
    clock: str = "wall"

    def __str__(self) -> str:
        return f"{self.seconds:g} s of {'CPU' if self.clock == 'cpu' else 'training'} time"


def parse_budget(text: str, clock: str = "wall") -> TimeBudget | None:
    """Parse a budget such as `90s`, `10min` or `1.5h`; return None if `text` is empty.

    Raises:
        UserError: invalid time.

    Example:
        >>> parse_budget("10min", "cpu")
        TimeBudget(seconds=600.0, clock='cpu')
    """
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)(s|min|h|d)", text)
    if not match or float(match[1]) == 0:
        raise UserError(f"budget={text!r}: expected a time such as 90s, 10min, 1.5h or 2d")
    return TimeBudget(float(match[1]) * SECONDS[match[2]], clock)
