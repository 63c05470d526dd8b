"""Linear layers as convolutions, where those are faster."""

import pytest
import torch
from torch import Tensor, nn

from asr.attention import products
from asr.attention.products import LEAST_ROWS, Linear


def outcomes(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the output and the gradients of the input and the parameters."""
    x = x.clone().requires_grad_()
    y = layer(x)
    gradients = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    return [y, *gradients]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, LEAST_ROWS, 96), (3 * LEAST_ROWS + 1, 96), (2, LEAST_ROWS, 96, 1)])
def test_convolutions_are_linear_layers(
    shape: tuple[int, ...], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = torch.randn(*shape).mT if len(shape) > 3 else torch.randn(*shape)  # the last isn't contiguous
    plain = nn.Sequential(nn.Linear(x.shape[-1], 200, bias=bias))
    expected = outcomes(plain, x)
    monkeypatch.setattr(products, "products_lack_avx512", lambda: True)
    monkeypatch.setattr(products, "LEAST_PRODUCTS", 1)
    state = list(plain.state_dict())
    products.use_faster_products(plain)
    assert type(plain[0]) is Linear
    assert list(plain.state_dict()) == state
    with torch.profiler.profile() as profile:
        found = outcomes(plain, x)
    assert "aten::mkldnn_convolution" in {event.key for event in profile.key_averages()}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("x", [torch.randn(8, 64), torch.randn(512, 64).double()])
def test_short_inputs_and_other_types_are_products(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "products_lack_avx512", lambda: True)
    weight = torch.randn(64, 64, dtype=x.dtype)
    assert torch.equal(products.linear(x, weight, None), x @ weight.mT)
