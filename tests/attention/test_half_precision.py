"""Outputs and gradients in bfloat16 against float64, beside the error of PyTorch's attention in bfloat16."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from mechanisms import OWN, QUERY_KEY, build_layer
from torch import Tensor, nn

from asr.attention import build_mechanism

SIZE, LENGTHS = (2, 2, 70, 16), torch.tensor([70, 45])


def inputs() -> list[Tensor]:
    """Return q, k, v and the gradient of the output, [B, H, N, D], rounded to bfloat16."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(SIZE, generator=generator).bfloat16() for _ in range(4)]


def results(attend: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return the output and the gradients of q, k and v as float64."""
    q, k, v, grad = (x.to(dtype).requires_grad_() for x in inputs())
    torch.manual_seed(0)  # mechanisms with planes=fresh draw them in each call
    out = attend(q, k, v)
    assert out.dtype == dtype
    return [x.double() for x in (out.detach(), *torch.autograd.grad(out, (q, k, v), grad))]


def errors(attend: Callable[..., Tensor]) -> list[float]:
    """Return the relative errors of the results in bfloat16."""
    found = zip(results(attend, torch.bfloat16), results(attend, torch.float64), strict=True)
    return [float((rounded - exact).norm() / exact.norm()) for rounded, exact in found]


def masked_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep_BN = torch.arange(SIZE[2]) < LENGTHS.unsqueeze(-1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep_BN[:, None, None])
    return out * keep_BN[:, None, :, None]


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("name", QUERY_KEY)
def test_the_error_in_bfloat16_is_that_of_pytorch_s_attention(name: str, backend: str) -> None:
    mechanism = build_mechanism(name, backend=backend)
    own, sdpa = errors(lambda q, k, v: mechanism(q, k, v, LENGTHS)), errors(masked_sdpa)
    for error, usual in zip(own, sdpa, strict=True):
        assert error <= 1.5 * usual, (own, sdpa)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_full_attention_with_finite_padding(dtype: torch.dtype, backend: str) -> None:
    """The layer, which has zeroed its input, lets the mechanism leave padding as it is.

    In float32, short sequences with finite padding are masked, others are cut: last bits differ.
    """
    mechanism = build_mechanism("full", backend=backend)
    q, k, v, grad = (x.to(dtype) for x in inputs())
    keep_BN = torch.arange(SIZE[2]) < LENGTHS.unsqueeze(-1)
    found = []
    for finite in (False, True):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = mechanism(*leaves, LENGTHS, finite_padding=finite) * keep_BN[:, None, :, None]
        found.append((out, *torch.autograd.grad(out, leaves, grad)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other) or dtype == torch.float32
        assert (one - other).norm() <= 1e-6 * other.norm()


def layer_results(layer: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    """Return the output and the gradients of the input and of all parameters, as float64."""
    generator = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(2, 70, 16, generator=generator).bfloat16().to(dtype) for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
        y = layer(x.requires_grad_(), LENGTHS)
    of_input, *of_parameters = torch.autograd.grad(y, (x, *layer.parameters()), grad.to(y.dtype))
    parts = y.detach(), of_input, torch.cat([part.flatten() for part in of_parameters])
    return [part.double() for part in parts]


@pytest.mark.parametrize("name", OWN)
def test_a_layer_with_its_own_parameters_under_autocast(name: str) -> None:
    """In other tests the input is rounded and all else exact; here every product of the layer is rounded.

    CAST gives tokens to other clusters if its affinities are rounded, so its error is bounded loosely.
    """
    layer = build_layer(name, 16)
    for parameter in layer.parameters():
        parameter.data = parameter.data.bfloat16().float()
    rounded = layer_results(layer, torch.float32)
    exact = layer_results(layer.double(), torch.float64)
    bound = 0.15 if name.startswith("cast") else 0.02
    for found, expected in zip(rounded, exact, strict=True):
        assert (found - expected).norm() <= bound * expected.norm()
