"""The training plan: the length of training in steps or time, and the validation interval."""

from dataclasses import dataclass

from asr.console import counted
from asr.data.stream import TrainingData
from asr.errors import UserError
from asr.training.budget import TimeBudget, parse_budget
from asr.training.options import TrainConfig

ENDLESS = 2**40  # maximum number of steps if only a time budget ends training


@dataclass(frozen=True)
class TrainingPlan:
    """How a task is trained.

    Attributes:
        options: options of the run.
        steps: maximum number of optimiser steps.
        validate_every: batches between validations.
        budget: time budget; None: `steps` alone ends training.
    """

    options: TrainConfig
    steps: int
    validate_every: int
    budget: TimeBudget | None

    @property
    def stopping_rules(self) -> list[float | None]:
        """Values of the options that can end training before `steps` and `budget` do."""
        trainer = self.options.trainer
        return [trainer.early_stopping, trainer.stop_at, self.options.optimizer.minimum_rate]

    @property
    def length(self) -> str:
        """Length of training, for display."""
        if self.budget is None:
            return counted(self.steps, "step")
        return (
            str(self.budget)
            if self.steps == ENDLESS
            else f"{self.budget}, at most {counted(self.steps, 'step')}"
        )


def training_plan(options: TrainConfig, data: TrainingData, taken: int = 0) -> TrainingPlan:
    """Return the training plan, and set the number of batches of `data`.

    Args:
        options: options of the run.
        data: training data; its cursor is the position to start from.
        taken: optimiser steps taken before.

    Raises:
        UserError: the options leave no training step.
    """
    accumulate = options.trainer.accumulate
    step_batches = accumulate * options.trainer.devices * options.trainer.nodes
    budget = parse_budget(options.trainer.budget, options.trainer.budget_clock)
    steps = options.trainer.max_steps or (ENDLESS if budget else 0)
    if not steps:
        # Epochs differ by a few batches; taking the first for all avoids planning all of them now.
        left = options.trainer.max_epochs * data.epoch_batches(0) - data.cursor.total
        steps = taken + max(0, left) // step_batches
    if steps == 0:
        raise UserError(
            "training would take no steps: check trainer.max_steps, trainer.max_epochs, trainer.accumulate"
        )
    data.batches = steps * accumulate
    validate_every = options.trainer.validate_every or max(1, data.epoch_batches(0) // step_batches)
    return TrainingPlan(options, steps, min(validate_every, steps) * accumulate, budget)
