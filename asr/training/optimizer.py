"""The optimiser and its learning rate schedule."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from asr.training.muon import Muon, is_hidden
from asr.training.options import OptimizerConfig

PLATEAU_FACTOR = 0.5  # nobody used another; the patience decides when
RHO = 0.95  # decay of Adadelta's averages (Zeiler 2012, section 4.1)
FINAL_RATIO = 0.01  # final / peak learning rate of the cosine


def build_optimizer(parameters: dict[str, torch.nn.Parameter], config: OptimizerConfig) -> Optimizer:
    """Return AdamW, Muon, RAdam with decoupled weight decay (Vyas et al. 2020, section 4), or Adadelta.

    Adadelta (Zeiler 2012) has the paper's ε = 1e-6; learning_rate = 1 is the paper's step.

    Biases, norms and other vectors are not decayed.
    """
    trained = {name: x for name, x in parameters.items() if x.requires_grad}
    # Biases may be tables, with a row for each head.
    vectors = {name: x for name, x in trained.items() if x.dim() <= 1 or "bias" in name.rpartition(".")[2]}
    rest = {name: x for name, x in trained.items() if name not in vectors}
    hidden = {name: x for name, x in rest.items() if config.name == "muon" and is_hidden(name, x)}
    groups: list[dict[str, Any]] = [
        {
            "params": [x for name, x in rest.items() if name not in hidden],
            "weight_decay": config.weight_decay,
        },
        {"params": list(vectors.values()), "weight_decay": 0.0},
    ]
    if config.name == "adadelta":
        return torch.optim.Adadelta(groups, lr=config.learning_rate, rho=RHO, eps=1e-6)
    betas = (config.betas[0], config.betas[1])
    on_cpu = all(x.device.type == "cpu" for x in trained.values())
    if config.name == "radam":
        # Twice as fast on a CPU, where PyTorch's default updates one parameter after another.
        return torch.optim.RAdam(
            groups,
            lr=config.learning_rate,
            betas=betas,
            decoupled_weight_decay=True,
            foreach=True if on_cpu else None,
        )
    # Fused steps are four times as fast on a CPU; on a GPU, Lightning can't clip gradients with them in fp16.
    if config.name == "muon":
        groups.append({"params": list(hidden.values()), "weight_decay": config.weight_decay, "hidden": True})
        return Muon(groups, lr=config.learning_rate, betas=betas, fused=on_cpu)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=on_cpu)


def rate_factor(step: int, steps: int, config: OptimizerConfig, spent: float | None = None) -> float:
    """Return the learning rate at `step` of `steps`, relative to the peak rate.

    With a time budget, the cosine follows `spent`, the fraction of the budget used so far (0 … 1), instead
    of the steps.
    """
    warm = min(1.0, (step + 1) / max(1, config.warmup_steps))
    if config.schedule == "constant":
        return warm
    if spent is None:
        spent = max(0, step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, spent)))
    return warm * (FINAL_RATIO + (1 - FINAL_RATIO) * cosine)


def configure(
    parameters: dict[str, torch.nn.Parameter],
    config: OptimizerConfig,
    *,
    steps: int,
    validate_every: int,
    spent: Callable[[], float] | None = None,
) -> dict[str, Any]:
    """Return the optimiser and schedule for Lightning's `configure_optimizers`.

    Args:
        parameters: parameters by name.
        config: optimiser, learning rate and schedule.
        steps: total number of optimiser steps.
        validate_every: batches between validations; `plateau` checks the dev loss after each validation.
        spent: function that returns the fraction of the time budget used; None: no time budget.
    """
    optimizer = build_optimizer(parameters, config)
    if config.schedule == "plateau":
        plateau = ReduceLROnPlateau(optimizer, factor=PLATEAU_FACTOR, patience=config.plateau_patience)
        every = {"interval": "step", "frequency": validate_every, "monitor": "dev_loss"}
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, **every}}
    schedule = LambdaLR(optimizer, lambda step: rate_factor(step, steps, config, spent() if spent else None))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def follow_plan(schedule: Any) -> None:
    """Set the next step's learning rate to the schedule's, if the schedule is a function of the step.

    A resume point stores the rate of its plan, which may have had fewer steps or less time. And Lightning
    sets the next rate before it adds the step that ends to the time spent.
    """
    if isinstance(schedule, LambdaLR):
        for group, base, factor in zip(
            schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
        ):
            group["lr"] = base * factor(schedule.last_epoch)
