"""Dropout from 16 random bits an element."""

import pytest
import torch

from asr.model.dropout import LEVELS, Dropout


@pytest.mark.parametrize("probability", [1e-4, 0.1, 0.5, 0.9])
def test_the_share_of_zeros_and_the_mean_are_those_of_the_probability(probability: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 1001)
    y = Dropout(probability)(x)
    deviation = (probability * (1 - probability) / x.numel()) ** 0.5
    assert abs((y == 0).float().mean().item() - probability) < 4 * deviation
    assert abs(y.mean().item() - 1) < 4 * deviation / (1 - probability)
    level = round(probability * LEVELS)
    assert y.max().item() == pytest.approx(LEVELS / (LEVELS - level), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 7), (2, 5, 11)])
def test_gradients_pass_where_values_do(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(shape, dtype=dtype).requires_grad_()
    y = Dropout(0.4)(x)
    y.sum().backward()
    assert y.dtype == dtype
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


def test_neighbours_are_independent() -> None:
    """Four elements share a random number of 64 bits."""
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(250_000, 4)) != 0).double() - 0.5
    correlation = 4 * (kept.T @ kept) / len(kept)
    assert (correlation - torch.eye(4, dtype=torch.float64)).abs().max() < 0.01


def test_the_seed_decides() -> None:
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return Dropout(0.3)(torch.ones(99))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_nothing_and_everything_can_be_dropped() -> None:
    x = torch.randn(5)
    assert Dropout(0.0)(x) is x
    assert Dropout(0.7).eval()(x) is x
    assert not Dropout(1.0)(x).any()
