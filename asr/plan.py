"""How long and how a task is trained."""

from dataclasses import dataclass

from asr.budget import TimeBudget, parse_budget
from asr.data.stream import TrainingData
from asr.errors import UserError
from asr.optimizer import OptimizerConfig
from asr.train_config import TrainConfig

ENDLESS = 2**40  # steps, where time ends the training


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
