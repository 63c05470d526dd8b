"""Tasks other than speech: a model with attention labels sequences or positions."""

import json
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from asr.attention.table import code_digests, given_name
from asr.config import to_dict
from asr.data.stream import NumberedBatches
from asr.errors import UserError
from asr.files import require_file
from asr.model import checkpoint
from asr.model.attention_model import AttentionModel, model_state, restore
from asr.records.run_folder import RunFolder
from asr.scoring.measures import is_share
from asr.scoring.statistics import bootstrap_interval
from asr.training.config import run_options
from asr.training.options import TrainConfig, recipe_task
from asr.training.task import TrainingTask


class LabelTask(TrainingTask):
    """Trains a model to predict labels; a subclass scores the predictions of a batch."""

    model: AttentionModel

    @abstractmethod
    def scores(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Score each item of a batch.

        Returns:
            Three tensors [B], summed over the item's labels: loss; errors, or another measure such as bits;
            number of labels.
        """

    def losses(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of each item of a batch, [B], summed over labels, and the number of labels."""
        losses, _, labels = self.scores(batch)
        return losses, labels.sum()

    def dev_counts(self, batch: Any) -> tuple[float, float, float, float]:
        """Return the errors, labels, summed loss and labels of a dev batch."""
        loss, errors, labels = (float(x.sum()) for x in self.scores(batch))
        return errors, labels, loss, labels

    def model_state(self) -> dict[str, Any]:
        """Return sizes, mechanism and weights."""
        return model_state(self.model, self.plan.options.model)

    def describe(self, device_type: str) -> dict[str, Any]:
        """Return the mechanism, its backend and digests of its code."""
        name = self.model.attention
        return {
            "attention": name,
            "backend": self.model.backend_on(device_type),
            "code": code_digests(name),
        }


@dataclass(frozen=True)
class LabelScore:
    """Score of a model on a split.

    Attributes:
        split: `dev` or `test`.
        attention: mechanism.
        backend: backend of attention: native | reference.
        measure: `error` (a fraction), `bits_per_character` or `bits_per_token`.
        value: value of the measure.
        interval: its 95 % bootstrap interval over the items; None for a single item.
        items, labels: numbers of items, and of labels in them: masked symbols, tokens or classes.
        errors, lengths: errors (or bits) and number of labels of each item, by measure.
    """

    split: str
    attention: str
    backend: str
    measure: str
    value: float
    interval: tuple[float, float] | None
    items: int
    labels: int
    errors: dict[str, list[float]]
    lengths: dict[str, list[float]]

    @property
    def item_perplexity(self) -> float | None:
        """Mean over items of 2 ** (bits per label); None if the measure is an error.

        This is the perplexity that Agglomerative Attention's code reports: in its TextMetrics.py,
        `K.mean(K.exp(K.mean(cross_entropy, axis=-1)))`. It is at least 2 to the power of `value`.
        """
        if is_share(self.measure):
            return None
        return float(np.exp2(np.divide(self.errors[self.measure], self.lengths[self.measure])).mean())


def data_key(options: TrainConfig) -> str:
    """Return, as text, all that a task's data depend on besides the seed."""
    return json.dumps([to_dict(options.recipe), to_dict(options.tokenizer)])


def load_task(run: str, attention: str = "", device: str = "cpu") -> tuple[LabelTask, NumberedBatches]:
    """Return a trained task for evaluation, and its data.

    Args:
        run: run folder.
        attention: mechanism; empty: the one the run was trained with.
        device: `cpu` or `cuda`.

    Raises:
        UserError: the folder has no run, its recipe has no task of its own, the checkpoint is damaged, or the
            mechanisms can't be exchanged.
    """
    attention = attention and given_name(attention)
    folder = RunFolder(run)
    require_file(folder.options, "the options of a run")
    options = run_options(folder)
    module = recipe_task(options.recipe.name)
    if module is None:
        raise UserError(
            f"{folder.options}: expected a recipe with its own task, found {options.recipe.name} "
            "(asr decode and asr score evaluate its models)"
        )
    task, data = cast(tuple[LabelTask, NumberedBatches], module.build(options, resuming=True))
    restore(task.model, checkpoint.load(folder.checkpoint())["model"], options.backend)
    if attention:
        task.model.set_attention(attention)
    return task.to(device).eval(), data


@torch.inference_mode()
def evaluate(
    task: LabelTask,
    data: NumberedBatches,
    split: str,
    items: int = 0,
    advance: Callable[[float], None] = lambda fraction: None,
) -> LabelScore:
    """Predict the labels of a split.

    Args:
        task: see `load_task`.
        data: data of the task.
        split: `dev` or `test`.
        items: maximum number of items; 0: all, or 2,000 if they are generated without end.
        advance: called with the completed fraction.

    Raises:
        UserError: a file of the split is missing or can't be read.
    """
    batches = data.held_out(split, items)
    scores = []
    for number in range(len(batches)):
        scores.append([x.cpu() for x in task.scores(batches[number].to(task.device))[1:]])
        advance((number + 1) / len(batches))
    errors, labels = (torch.cat(x).double().numpy() for x in zip(*scores, strict=True))
    measure = task.error_rate_name.removeprefix("dev_")
    return LabelScore(
        split,
        task.model.attention,
        task.model.backend_on(task.device.type),
        measure,
        float(errors.sum() / labels.sum()),
        bootstrap_interval(errors, labels) if len(errors) > 1 else None,
        len(errors),
        int(labels.sum()),
        {measure: errors.tolist()},
        {measure: labels.tolist()},
    )
