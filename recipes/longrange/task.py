"""Long-range classification of sequences by the mean of the encoder's states.

*Long Range Arena*, Tay et al. 2021, the benchmark of *CAST*, van Engelenhoven et al. 2024.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from asr_recipes.longrange.data import ItemBatch, ItemData
from asr_recipes.longrange.folders import PAIR_FILES, ListOpsFiles, PairFiles, PathfinderFolder
from asr_recipes.longrange.items import ItemSource
from asr_recipes.longrange.listops import ListOps
from asr_recipes.longrange.model import Classifier
from asr_recipes.longrange.pathfinder import Pathfinder
from asr_recipes.longrange.text import PassagePairs, TextFolder
from torch import Tensor, nn

from asr.config import option
from asr.errors import UserError
from asr.model.attention_model import initialise
from asr.training.config import RecipeConfig, TrainConfig
from asr.training.labelling import LabelTask
from asr.training.plan import training_plan

TASKS = ("listops", "pathfinder", "text", "retrieval")
SIZES = (16, 32, 64, 128, 256)
LONGEST_GENERATED = 8_000  # symbols of a ListOps expression, 13 ms each


@dataclass
class Options(RecipeConfig):
    """Options of long-range classification."""

    name: str = option(
        "longrange", help="name of the recipe; the run folder is exp/<name>/<attention>", affects="result"
    )
    task: str = option("listops", help=" | ".join(TASKS), affects="result", choices=TASKS)
    length: int = option(
        2000,
        help="maximum length of a sequence; the rest of a text is cut off; listops: the minimum is a quarter",
        affects="result",
        only=("task", ("listops", "text", "retrieval")),
        unit="symbols or bytes",
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
        only=[("task", "pathfinder"), ("folder", "")],
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
    folder: str = option(
        "",
        help="folder with the task's public data, or with texts; empty: listops and pathfinder are generated",
        affects="result",
    )
    batch: int = option(32, help="items in a batch", affects="result", minimum=1, maximum=65_536)
    dev_items: int = option(500, help="development items", affects="result", minimum=1, maximum=1_000_000)

    def check(self) -> None:
        """Raise UserError for texts without a folder, or generated expressions that are too long."""
        if self.task in ("text", "retrieval") and not self.folder:
            raise UserError(f"recipe.folder=: expected a folder of texts with recipe.task={self.task}")
        if not self.folder and self.task == "listops" and self.length > LONGEST_GENERATED:
            raise UserError(
                f"recipe.length={self.length}: expected at most {LONGEST_GENERATED} with generated ListOps, "
                "whose trees rarely have more symbols"
            )


class LongRangeTask(LabelTask):
    """Trains with the cross-entropy of the labels, validated by the share of wrong labels."""

    def scores(self, batch: ItemBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the cross-entropy of each item, whether its label is wrong, and 1, [items] each."""
        logits = self.model(batch.values, batch.lengths).float()
        losses = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
        return losses, logits.argmax(dim=-1) != batch.labels, torch.ones_like(batch.labels)

    def frames(self, batch: ItemBatch) -> int:
        """Return the number of valid positions in a batch."""
        return int(batch.lengths.sum())


def build(options: TrainConfig, resuming: bool) -> tuple[LongRangeTask, ItemData]:
    """Return the task and its data.

    Raises:
        UserError: see `build_source`, or weights of init_from don't fit the model.
    """
    recipe = options.recipe
    assert isinstance(recipe, Options)
    source = build_source(recipe, options.seed)
    data = ItemData(source, recipe.batch, recipe.dev_items, options.seed)
    model = build_model(options, source)
    if options.init_from and not resuming:
        initialise(model, options.init_from, options.backend)
    return LongRangeTask(model, training_plan(options, data)), data


def build_source(recipe: Options, seed: int) -> ItemSource:
    """Return the items of the task.

    Raises:
        UserError: files of `recipe.folder` are missing or can't be read, or curves don't fit in an image.
    """
    folder = Path(recipe.folder)
    match recipe.task:
        case "listops":
            return ListOpsFiles(folder, recipe.length) if recipe.folder else ListOps(recipe.length, seed)
        case "pathfinder":
            if recipe.folder:
                return PathfinderFolder(folder, recipe.size)
            return Pathfinder(recipe.size, recipe.dashes, seed)
        case "text":
            return TextFolder(folder, recipe.length)
        case _:
            if (folder / PAIR_FILES["train"]).exists():
                return PairFiles(folder, recipe.length)
            return PassagePairs(folder, recipe.length, seed)


def build_model(options: TrainConfig, source: ItemSource) -> Classifier:
    """Return an untrained classifier of a source's items."""
    assert isinstance(options.recipe, Options)
    return Classifier(
        options.model,
        source.values,
        source.longest,
        options.recipe.patch,
        source.towers,
        source.classes,
        options.attention,
        options.backend,
    )
