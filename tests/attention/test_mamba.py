"""Mamba: the scan by chunks equals the recurrence, for any chunk, without overflow."""

import pytest
import torch
from mechanisms import LENGTHS, build_layer, layer_input
from torch import Tensor

from asr.attention import build_self_attention
from asr.attention.mamba import scan, states_before
from asr.errors import UserError


def problem(size: int, ways: int, scale: float = 1.0) -> list[Tensor]:
    """Arguments of `scan` without the chunk: B = 2, H = 3, D = 2, S = 4."""
    random = torch.Generator().manual_seed(size)
    shapes = ((2, size, 3, 2), (ways, 2, size, 3), (ways, 3), (ways, 2, size, 4), (ways, 2, size, 4), (3,))
    x, step, rate, keys, queries, skip = (
        torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes
    )
    return [x, scale * step.exp(), rate.exp(), keys, queries, skip]


def recurrence(x: Tensor, step: Tensor, rate: Tensor, keys: Tensor, queries: Tensor, skip: Tensor) -> Tensor:
    """The equation, position by position."""
    y = skip[:, None] * x
    for k in range(len(step)):
        h = torch.zeros(2, 3, 4, 2, dtype=x.dtype)
        for t in range(x.shape[1]) if k == 0 else reversed(range(x.shape[1])):
            new = torch.einsum("bh,bs,bhd->bhsd", step[k, :, t], keys[k, :, t], x[:, t])
            h = (-step[k, :, t] * rate[k]).exp()[..., None, None] * h + new
            y[:, t] += torch.einsum("bs,bhsd->bhd", queries[k, :, t], h)
    return y


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 31])
def test_every_chunk_gives_the_recurrence(size: int, ways: int) -> None:
    """Chunks of 1, 2 and 3 need several levels of states; the position beyond a chunk's end is one case."""
    given = [x.requires_grad_() for x in problem(size, ways)]
    expected = recurrence(*given)
    gradients = torch.autograd.grad(expected.cos().sum(), given)
    for chunk in (1, 2, 3, 8, 31, 64):
        found = scan(*given, chunk)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        for ours, theirs in zip(torch.autograd.grad(found.cos().sum(), given), gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backwards", [False, True])
def test_states_before_each_position(backwards: bool) -> None:
    for size in (1, 2, 5, 64, 65, 130):
        x = torch.randn(1, 2, size, 3, dtype=torch.float64)
        log_decay = -torch.rand(1, 2, size, dtype=torch.float64)
        found, h = states_before(x, log_decay, 4, backwards), torch.zeros(1, 2, 3, dtype=torch.float64)
        for t in reversed(range(size)) if backwards else range(size):
            torch.testing.assert_close(found[:, :, t], h, rtol=0, atol=1e-12)
            h = log_decay[:, :, t].exp().unsqueeze(-1) * h + x[:, :, t]


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e6])
def test_no_step_overflows_or_underflows(scale: float) -> None:
    """Steps of 0, whose logarithm is infinite, and steps whose decays are 0."""
    given = [x.float().requires_grad_() for x in problem(31, 2, scale)]
    y = scan(*given, 8)
    y.sum().backward()
    for x in (y, *(x.grad for x in given)):
        assert x is not None
        assert x.isfinite().all()
    expected = recurrence(*(x.detach().double() for x in given))
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)


def test_causal_output_is_that_of_every_prefix() -> None:
    layer, x = build_layer("mamba:causal=true,chunk=4", 8).double(), layer_input(8, torch.float64)[:1]
    y = layer(x)
    for n in range(1, 32):
        torch.testing.assert_close(layer(x[:, :n]), y[:, :n], rtol=0, atol=1e-12)


def test_float32_is_the_same_alone_and_in_a_batch() -> None:
    """The backward direction starts in the padding, with a state of 0."""
    layer, x = build_layer("mamba", 8), layer_input(8)
    y = layer(x, LENGTHS)
    for b, n in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(layer(x[b : b + 1, :n])[0], y[b, :n], rtol=0, atol=2e-6)


@pytest.mark.parametrize("size", [128, 192])
def test_parameters_are_about_those_of_full_attention(size: int) -> None:
    full, mamba = (
        sum(x.numel() for x in build_self_attention(name, size, 4).parameters()) for name in ("full", "mamba")
    )
    assert 0.85 < mamba / full < 1


def test_heads_divide_the_channels() -> None:
    with pytest.raises(UserError, match="8 channels are not a multiple of 3 heads"):
        build_self_attention("mamba", 8, 3, head_dim=2)
