"""Options of masked copy."""

from dataclasses import dataclass

from asr.config import option
from asr.training.options import RecipeConfig


@dataclass
class TaskOptions(RecipeConfig):
    """Options of masked copy."""

    name: str = option(
        "copy", help="name of the recipe; the run folder is exp/<name>/<attention>", affects="result"
    )
    length: int = option(
        31,
        help="L, the number of symbols in each half of a sequence",
        affects="result",
        minimum=1,
        maximum=100_000,
    )
