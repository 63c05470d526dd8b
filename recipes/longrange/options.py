"""Options of long-range classification."""

from dataclasses import dataclass

from asr.config import option
from asr.errors import UserError
from asr.training.options import RecipeConfig

TASKS = ("listops", "pathfinder")
SIZES = (16, 32, 64, 128, 256)
LONGEST_GENERATED = 8_000  # symbols of a ListOps expression, 13 ms each


@dataclass
class TaskOptions(RecipeConfig):
    """Options of long-range classification."""

    name: str = option(
        "longrange", help="name of the recipe; the run folder is exp/<name>/<attention>", affects="result"
    )
    task: str = option("listops", help=" | ".join(TASKS), affects="result", choices=TASKS)
    length: int = option(
        2000,
        help="maximum length of an expression; the minimum is a quarter",
        affects="result",
        only=("task", "listops"),
        unit="symbols",
        minimum=16,
        maximum=100_000,
    )
    size: int = option(
        32,
        help=f"side of an image: {' | '.join(map(str, SIZES))}",
        affects="result",
        only=("task", "pathfinder"),
        unit="pixels",
        choices=SIZES,
    )
    dashes: int = option(
        9,
        help="dashes in each of the two long curves; more are harder",
        affects="result",
        only=("task", "pathfinder"),
        minimum=2,
        maximum=30,
    )
    patch: int = option(
        1,
        help="side of the patches that the encoder reads: 1 (as in Long Range Arena) | 2 | 4",
        affects="result",
        only=("task", "pathfinder"),
        unit="pixels",
        choices=(1, 2, 4),
    )
    batch: int = option(32, help="items in a batch", affects="result", minimum=1, maximum=65_536)
    dev_items: int = option(500, help="development items", affects="result", minimum=1, maximum=1_000_000)

    def check(self) -> None:
        """Raise UserError if generated expressions would be too long."""
        if self.task == "listops" and self.length > LONGEST_GENERATED:
            raise UserError(
                f"recipe.length={self.length}: expected at most {LONGEST_GENERATED}: trees rarely have more "
                "symbols"
            )
