"""Averaging of weights over processes that train on their own gradients, instead of averaging gradients.

Vyas et al. 2020, section C.3.2, after Povey et al. 2014, *Parallel training of DNNs with natural gradient and
parameter averaging*.
"""

from typing import Any

import lightning
import torch
from torch import Tensor, distributed

from asr.training.options import TrainerConfig


def averages_weights(options: TrainerConfig) -> bool:
    """Return whether there are several processes whose weights are averaged."""
    return bool(options.average_every) and options.devices * options.nodes > 1


class AverageWeights(lightning.Callback):
    """Averages weights and the optimiser's moments over processes every k optimiser steps and after the last.

    With the moments, all processes have the same state then, so a resume point of the first is complete.

    Args:
        every: optimiser steps between averages, k.
        steps: number of the last step.
    """

    def __init__(self, every: int, steps: int) -> None:
        self.every = every
        self.steps = steps
        self.averaged = 0  # step of the latest average

    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Start from the resume point's step."""
        self.averaged = trainer.global_step

    def on_train_batch_end(
        self, trainer: lightning.Trainer, task: lightning.LightningModule, *_: Any
    ) -> None:
        """Average if a step that is due has been taken."""
        step = trainer.global_step
        due = step % self.every == 0 or step >= self.steps or trainer.should_stop
        if due and step > self.averaged:
            self.averaged = step
            average_processes([x.data for x in task.parameters()])
            for optimizer in trainer.optimizers:
                states = [optimizer.state[x] for group in optimizer.param_groups for x in group["params"]]
                average_processes(
                    [x for state in states for x in state.values() if isinstance(x, Tensor) and x.dim()]
                )


def average_processes(tensors: list[Tensor]) -> None:
    """Replace tensors by their averages over all processes."""
    if not tensors:
        return
    flat = torch.cat([x.reshape(-1) for x in tensors])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    for x, averaged in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
        x.copy_(averaged.view_as(x))
