"""The optimiser and its learning rate schedule."""

import itertools

import pytest
import torch

from asr.training.optimizer import OptimizerConfig, build_optimizer, rate_factor


def test_vectors_are_not_decayed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    optimizer = build_optimizer(dict(model.named_parameters()), OptimizerConfig(weight_decay=0.1))
    decayed = [x.shape for group in optimizer.param_groups if group["weight_decay"] for x in group["params"]]
    assert decayed == [torch.Size([4, 3])]


def test_adadelta_steps_by_the_ratio_of_averages() -> None:
    """Zeiler 2012, algorithm 1."""
    weight = torch.nn.Parameter(torch.tensor([[2.0]], dtype=torch.float64))
    config = OptimizerConfig("adadelta", learning_rate=1.0, rho=0.9, weight_decay=0.0)
    optimizer = build_optimizer({"weight": weight}, config)
    x, gradients, updates = 2.0, 0.0, 0.0
    for _ in range(5):
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
        gradient = 2 * x
        gradients = 0.9 * gradients + 0.1 * gradient**2
        update = -((updates + 1e-6) ** 0.5) / (gradients + 1e-6) ** 0.5 * gradient
        updates = 0.9 * updates + 0.1 * update**2
        x += update
    assert weight.item() == pytest.approx(x, rel=1e-9)


def test_the_learning_rate_warms_up_and_decays_to_its_final_ratio() -> None:
    schedule = OptimizerConfig(warmup_steps=10, final_ratio=0.1)
    rates = [rate_factor(step, 100, schedule) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
