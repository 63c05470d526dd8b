"""Cost of an optimiser step, measured for all candidates in turns, and how many steps fit in a time.

On a shared machine, the same training takes a different number of steps in the same CPU time each time. A
measurement in turns is disturbed equally for all candidates, so steps in proportion to it compare them at
equal time.
"""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import lightning
import torch

from asr.config import affecting, flat, to_dict
from asr.data.stream import NumberedBatches
from asr.environment import pick_device
from asr.errors import UserError
from asr.files import digest, read_record, write_record
from asr.measure import Seconds, in_turns, now, torch_threads
from asr.training.optimizer import build_optimizer
from asr.training.options import TrainConfig
from asr.training.run import build_task

COSTS = "step_costs.json"
BATCHES = 20  # number of batches on which each candidate's step is measured, after a warm-up batch
PASSES = 9  # maximum over the batches; they end after ENOUGH_S per candidate or a twentieth of the budget
ENOUGH_S = 20.0  # CPU time: planning many candidates should take minutes, not hours
# Options that don't affect a step's cost, and seed and number of steps, which differ between trainings.
UNKEYED = (*affecting(TrainConfig, "place"), "seed", "trainer.max_steps", "optimizer.learning_rate")


class StepTimer:
    """Takes training steps that don't change the weights, and measures them.

    Args:
        options: options of the training.
    """

    def __init__(self, options: TrainConfig) -> None:
        lightning.seed_everything(0, verbose=False)
        self.accumulate, self.threads = options.trainer.accumulate, options.trainer.threads
        self.half, self.clip = options.trainer.precision == "bf16", options.trainer.clip or float("inf")
        # Utterances are joined to full length at once, because steps of the first epochs would cost less.
        here = replace(options, data=replace(options.data, workers=0, concatenate_epochs=0))
        self.task, self.data = build_task(here, resuming=False)
        self.loads = options.data.workers == 0 or isinstance(self.data, NumberedBatches)
        self.task.train()
        self.restart()
        # With a learning rate of 0, steps change neither weights nor the times of later steps.
        unchanging = replace(options.optimizer, learning_rate=0.0)
        self.optimizer = build_optimizer(dict(self.task.model.named_parameters()), unchanging)

    def restart(self) -> None:
        """Begin again with the first batch."""
        self.batches = iter(self.data.train_dataloader())

    def step(self) -> Seconds | None:
        """Return the time of an optimiser step; None: no more batches.

        Loading counts if the training process does it. One batch represents all that a step accumulates.
        """
        # As many threads as the training has, not as this process has.
        with torch_threads(self.threads):
            before = now()
            batch = next(self.batches, None)
            if batch is None:
                return None
            if not self.loads:
                before = now()
            with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
                losses = self.task.losses(batch)[0]
            losses.sum().backward()
            # The following happens once per step, however many batches it accumulates.
            between = now()
            torch.nn.utils.clip_grad_norm_(self.task.parameters(), self.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            after = now()
        return (between - before) * self.accumulate + (after - between)


def steps_within(
    seconds: Mapping[str, float], trainings: Mapping[str, TrainConfig], folder: Path, store: bool = True
) -> dict[str, int]:
    """Return the number of optimiser steps of each candidate that fit in its time, at least 1.

    The costs are stored in the comparison's folder, so that a resumed comparison has the same steps. A
    candidate that is added later is measured together with a known one, whose stored cost sets the scale.
    Candidates that differ only in their time are measured once.

    Args:
        seconds: CPU time by label of the candidate.
        trainings: training options by label of the candidate.
        folder: folder of the comparison.
        store: whether to store the costs.

    Raises:
        UserError: a candidate would train on a GPU.
    """
    if any(pick_device(options.trainer.accelerator) != "cpu" for options in trainings.values()):
        raise UserError(
            "budget_clock=steps measures CPU time: set trainer.accelerator=cpu or budget_clock=wall"
        )
    path = folder / COSTS
    stored = _stored(path)
    keys = {label: f"{options.attention} {_digest(options)}" for label, options in trainings.items()}
    labels = {key: label for label, key in reversed(keys.items())}  # the first of each
    known = [label for key, label in labels.items() if key in stored][:1]
    missing = [label for key, label in labels.items() if key not in stored]
    if missing:
        print(f"measuring the cost of a step: {', '.join([*known, *missing])}", flush=True)
        asked = {label: trainings[label] for label in [*known, *missing]}
        measured = step_costs(asked, min(ENOUGH_S, max(seconds.values()) / 20))
        scale = stored[keys[known[0]]] / measured[known[0]] if known else 1.0
        stored |= {keys[label]: scale * measured[label] for label in missing}
        if store:
            # Another process may have measured meanwhile, and started trainings with its numbers of steps.
            stored |= _stored(path)
            write_record(stored, path)
    return {label: max(1, int(seconds[label] / stored[keys[label]])) for label in trainings}


def _stored(path: Path) -> dict[str, float]:
    return read_record(path, "costs of steps") if path.exists() else {}


def step_costs(trainings: Mapping[str, TrainConfig], most_s: float = ENOUGH_S) -> dict[str, float]:
    """Return the CPU seconds of a training step of each candidate: means over the same batches.

    Every batch is measured in several passes, unless steps are long. Unlike a mean of short steps, a batch's
    median isn't affected by a single disturbance.

    Args:
        trainings: training options by label of the candidate.
        most_s: CPU time per candidate for all passes except the first.
    """
    timers = {
        label: StepTimer(replace(options, trainer=replace(options.trainer, max_steps=BATCHES + 1)))
        for label, options in trainings.items()
    }
    costs: dict[str, list[list[float]]] = {label: [[] for _ in range(BATCHES)] for label in timers}
    turns = {label: partial(_step, timer) for label, timer in timers.items()}
    spent_s = 0.0
    for passes in range(1, PASSES + 1):
        for timer in timers.values():
            timer.restart()
        for label, taken in in_turns(turns, BATCHES + 1, warm_up=0).items():
            spent_s += sum(step.cpu_s for step in taken)
            for number, step in enumerate(taken[1:]):
                costs[label][number].append(step.cpu_s)
        if spent_s * (passes + 1) / passes > most_s * len(timers):
            break
    return {label: statistics.fmean(map(statistics.median_low, rounds)) for label, rounds in costs.items()}


def _step(timer: StepTimer) -> Seconds:
    taken = timer.step()
    assert taken is not None, "max_steps allows for these batches"
    return taken


def _digest(options: TrainConfig) -> str:
    values = flat(to_dict(options))
    return digest("\0".join(f"{key}={values[key]}" for key in sorted(values) if key not in UNKEYED))
