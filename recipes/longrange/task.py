"""Long-range classification of sequences by the mean of the encoder's states.

*Long Range Arena*, Tay et al. 2021, the benchmark of *CAST*, van Engelenhoven et al. 2024.
"""

import torch
from asr_recipes.longrange.data import ItemBatch, ItemData
from asr_recipes.longrange.items import ItemSource
from asr_recipes.longrange.listops import ListOps
from asr_recipes.longrange.model import Classifier
from asr_recipes.longrange.options import TaskOptions
from asr_recipes.longrange.pathfinder import Pathfinder
from torch import Tensor, nn

from asr.model.attention_model import initialise
from asr.training.labelling import LabelTask
from asr.training.options import TrainConfig
from asr.training.plan import training_plan


class LongRangeTask(LabelTask):
    """Trains with the cross-entropy of the labels, validated by the fraction of wrong labels."""

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
    assert isinstance(recipe, TaskOptions)
    source = build_source(recipe, options.seed)
    data = ItemData(source, recipe.batch, recipe.dev_items, options.seed)
    model = build_model(options, source)
    if options.init_from and not resuming:
        initialise(model, options.init_from, options.backend)
    return LongRangeTask(model, training_plan(options, data)), data


def build_source(recipe: TaskOptions, seed: int) -> ItemSource:
    """Return the items of the task.

    Raises:
        UserError: curves don't fit in an image.
    """
    if recipe.task == "listops":
        return ListOps(recipe.length, seed)
    return Pathfinder(recipe.size, recipe.dashes, seed)


def build_model(options: TrainConfig, source: ItemSource) -> Classifier:
    """Return an untrained classifier of a source's items."""
    assert isinstance(options.recipe, TaskOptions)
    return Classifier(
        options.model,
        source.values,
        source.longest,
        options.recipe.patch,
        source.classes,
        options.attention,
        options.backend,
    )
