"""The training plan: the length of training in steps or time, and the validation interval."""

import re
from dataclasses import dataclass

from asr.data.stream import TrainingData
from asr.errors import UserError
from asr.training.config import TrainConfig

ENDLESS = 2**40  # maximum number of steps if only a time budget ends training
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


def parse_budget(text: str, clock: str) -> TimeBudget | None:
    """Parse a budget such as `90s`, `10min` or `1.5h`; return None if `text` is empty.

    Raises:
        UserError: invalid time or unknown clock.

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
    def length(self) -> str:
        """Length of training, for display."""
        if self.budget is None:
            return f"{self.steps} steps"
        return str(self.budget) + ("" if self.steps == ENDLESS else f", at most {self.steps} steps")


def training_plan(options: TrainConfig, data: TrainingData) -> TrainingPlan:
    """Return the training plan, and set the number of batches of `data`.

    Raises:
        UserError: the options leave no training step.
    """
    ranks = options.trainer.devices * options.trainer.nodes
    accumulate = options.trainer.accumulate
    budget = parse_budget(options.trainer.budget, options.trainer.budget_clock)
    steps = options.trainer.max_steps or (ENDLESS if budget else 0)
    if not steps:
        epochs = range(options.trainer.max_epochs)
        steps = sum(data.epoch_batches(i, ranks) for i in epochs) // accumulate
    if steps == 0:
        raise UserError(
            "training would take no steps: check trainer.max_steps, trainer.max_epochs, trainer.accumulate"
        )
    data.batches = steps * accumulate
    validate_every = options.trainer.validate_every or max(1, data.epoch_batches(0, ranks) // accumulate)
    return TrainingPlan(options, steps, min(validate_every, steps) * accumulate, budget)
