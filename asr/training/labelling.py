"""Tasks other than speech: a model with attention predicts labels of sequences or positions."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from asr.config import load_yaml
from asr.data.stream import NumberedBatches
from asr.errors import UserError
from asr.files import require_file
from asr.model import checkpoint
from asr.model.attention_model import AttentionModel, model_state, restore
from asr.training.config import recipe_task, train_options_from
from asr.training.task import TrainingTask


class LabelTask(TrainingTask):
    """Trains a model to predict labels; a subclass scores the predictions of a batch."""

    model: AttentionModel

    @abstractmethod
    def scores(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return three numbers for each item of a batch, [B] each.

        Returns:
            The summed loss; the errors, or another measure such as bits, summed too; the number of labels.
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
        """Return the mechanism and its backend."""
        return {"attention": self.model.attention, "backend": self.model.backend_on(device_type)}


def load_task(run: str) -> tuple[LabelTask, NumberedBatches]:
    """Return a trained task, for evaluation on the CPU, and its data.

    Args:
        run: run folder.

    Raises:
        UserError: no run, one of a recipe without a task of its own, or a damaged checkpoint.
    """
    path = Path(run, "config.yaml")
    require_file(path, "the options of a run")
    options = train_options_from(load_yaml(path), str(path))
    module = recipe_task(options.recipe.name)
    if module is None:
        raise UserError(f"{path}: expected a recipe with its own task, found {options.recipe.name}")
    task, data = cast(tuple[LabelTask, NumberedBatches], module.build(options, resuming=True))
    restore(task.model, checkpoint.load(checkpoint.find(Path(run)))["model"], options.backend)
    return task.eval(), data
