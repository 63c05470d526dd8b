"""The plan of a training: its length in steps or time, and how it is trained."""

import re
from dataclasses import dataclass

from asr.data.stream import TrainingData
from asr.errors import UserError
from asr.training.config import TrainConfig
from asr.training.optimizer import OptimizerConfig

ENDLESS = 2**40  # steps of a training that ends by time
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


@dataclass(frozen=True)
class TrainingPlan:
    """How long and how a task is trained.

    Attributes:
        optimizer: optimiser and schedule.
        steps: optimiser steps of the whole training, at most.
        validate_every: batches between validations.
        budget: time after which training ends; None: `steps` decides alone.
        seed: of the random numbers in the steps.
        clip: greatest gradient norm; 0: not clipped.
        nonfinite_patience: successive batches without a finite loss before training stops.
    """

    optimizer: OptimizerConfig
    steps: int
    validate_every: int
    budget: TimeBudget | None = None
    seed: int = 0
    clip: float = 1.0
    nonfinite_patience: int = 10

    @property
    def length(self) -> str:
        """Say how long training is."""
        steps = [] if self.steps == ENDLESS else [f"{self.steps} steps"]
        return ", at most ".join([*([str(self.budget)] if self.budget else []), *steps])


def training_plan(options: TrainConfig, data: TrainingData) -> TrainingPlan:
    """Count the steps of training and set the length of the stream.

    Raises:
        UserError: there would be no step.
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
            "training has no steps: see trainer.max_steps, trainer.max_epochs, trainer.accumulate"
        )
    data.batches = steps * accumulate
    validate_every = options.trainer.validate_every or max(1, data.epoch_batches(0, ranks) // accumulate)
    return TrainingPlan(
        optimizer=options.optimizer,
        steps=steps,
        validate_every=min(validate_every, steps) * accumulate,
        budget=budget,
        seed=options.seed,
        clip=options.trainer.clip,
        nonfinite_patience=options.trainer.nonfinite_patience,
    )
