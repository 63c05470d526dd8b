"""Linear layers on oneDNN, where that is faster."""

import copy
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from asr.attention import build_mechanism, products
from asr.attention.multihead import SelfAttention
from asr.attention.products import LEAST_ROWS, Activated, Linear, keep_packed, linear, onednn_serves

needs_bf16 = pytest.mark.skipif(
    not onednn_serves(torch.bfloat16), reason="oneDNN doesn't multiply in bfloat16 on this processor"
)


class Doubled(nn.Module):
    """Holds GELU as transformers' activations do, and does more."""

    act = staticmethod(F.gelu)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.act(x)


class DoubledGelu(nn.GELU):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def outcomes(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the output and the gradients of the input and the parameters."""
    x = x.clone().requires_grad_()
    y = layer(x)
    gradients = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    return [y, *gradients]


def operators(call: Callable[[], object]) -> set[str]:
    with torch.profiler.profile() as profile:
        call()
    return {event.key for event in profile.key_averages()}


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
    assert "aten::mkldnn_convolution" in operators(lambda: outcomes(plain, x))
    for one, other in zip(outcomes(plain, x), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("x", [torch.randn(8, 64), torch.randn(512, 64).double()])
def test_short_inputs_and_other_types_are_products(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "products_lack_avx512", lambda: True)
    layer = Linear(64, 64, bias=False, dtype=x.dtype)
    assert torch.equal(layer(x), x @ layer.weight.mT)
    with torch.no_grad():
        assert torch.equal(layer(x), x @ layer.weight.mT)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bf16)])
@pytest.mark.parametrize(
    "activation",
    [None, nn.GELU(), nn.GELU("tanh"), Doubled(), DoubledGelu(), nn.ReLU(), nn.SiLU(), nn.Tanh()],
)
def test_layers_without_gradients_are_the_same_layers(
    activation: nn.Module | None, dtype: torch.dtype, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One product for several layers; oneDNN applies the activations that it knows."""
    monkeypatch.setattr(products, "products_lack_avx512", lambda: True)
    torch.manual_seed(0)
    layers = nn.ModuleList([Linear(96, 100, bias=bias) for bias in (True, False, True)])
    chosen = list(layers) if activation is None else [layers[0]]
    x = torch.randn(3, 96, 70).mT  # not contiguous
    with torch.no_grad():
        expected = torch.cat([copy.deepcopy(layer).double()(x.double()) for layer in chosen], dim=-1)
        expected = expected if activation is None else activation(expected)
    if packed:
        keep_packed(layers)
    with torch.inference_mode(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        for _ in range(2):
            found = linear(x, chosen, activation)
            assert found.dtype == dtype
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
        assert "mkldnn::_linear_pointwise" in operators(lambda: linear(x, chosen, activation))


@needs_bf16
@pytest.mark.parametrize("activation", [nn.GELU(), nn.ReLU(), nn.SiLU()])
def test_nan_stays_nan(activation: nn.Module) -> None:
    """The ReLU of oneDNN returned 0."""
    x = torch.tensor([[torch.nan] * 32, [1.0] * 32])
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert linear(x, [Linear(32, 32)], activation).isnan().all(dim=1).tolist() == [True, False]


@needs_bf16
def test_gelu_of_transformers_is_applied_by_onednn() -> None:
    activations = pytest.importorskip("transformers.activations")
    x, layer, gelu = torch.randn(4, 32), Linear(32, 32), activations.ACT2FN["gelu"]
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found = linear(x, [layer], gelu)
        torch.testing.assert_close(found, gelu(layer(x)), rtol=2e-2, atol=2e-2)
        assert "aten::gelu" not in operators(lambda: linear(x, [layer], gelu))


@needs_bf16
def test_wrong_sizes_are_errors_of_pytorch() -> None:
    """The error of oneDNN named no size."""
    message = re.escape("(4x30 and 32x16)")
    with (
        torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(RuntimeError, match=message),
    ):
        Linear(32, 16)(torch.randn(4, 30))


def test_empty_sizes_are_those_of_pytorch() -> None:
    for size, outputs in ((0, 3), (3, 0)):
        assert torch.equal(Linear(size, outputs, bias=False)(torch.ones(2, size)), torch.zeros(2, outputs))


def test_the_default_device_changes_nothing() -> None:
    expected = onednn_serves(torch.bfloat16)
    onednn_serves.cache_clear()
    with torch.device("meta"):
        assert onednn_serves(torch.bfloat16) == expected


@needs_bf16
def test_changed_weights_are_packed_again() -> None:
    torch.manual_seed(0)
    layer, x = Linear(32, 32), torch.randn(4, 32)

    def found() -> Tensor:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            return layer(x).float()

    def expected() -> Tensor:
        return F.linear(x, layer.weight, layer.bias).detach()

    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)  # leaves versions as they are
    torch.testing.assert_close(found(), expected(), rtol=2e-2, atol=5e-2)
    for change in range(4):
        keep_packed(layer)
        before = found()
        if change == 0:
            layer.train()(x).sum().backward()
            optimizer.step()
            layer.eval()
        elif change == 1:
            layer.load_state_dict(Linear(32, 32).state_dict())
        elif change == 2:
            layer.weight = nn.Parameter(torch.randn(32, 32))
        else:
            layer.to(torch.float64).to(torch.float32)
            with torch.no_grad():
                layer.bias += 1
        torch.testing.assert_close(found(), expected(), rtol=2e-2, atol=5e-2)
        assert not torch.allclose(found(), before, atol=0.2)


@needs_bf16
def test_packed_weights_are_no_part_of_a_model() -> None:
    model = Activated(Linear(16, 16), nn.GELU(), nn.Dropout(0.5), Linear(16, 16)).eval()
    keep_packed(model)
    x, state = torch.randn(3, 16), list(model.state_dict())

    def found(model: nn.Module) -> Tensor:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            return model(x)

    expected = found(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert list(other.state_dict()) == state
        assert torch.equal(found(other), expected)


@pytest.mark.parametrize("grad", [True, False])
def test_hooks_of_layers_are_called(grad: bool) -> None:
    feedforward, attention = (
        Activated(Linear(16, 16), nn.GELU()),
        SelfAttention(build_mechanism("full"), 16, 2, 8),
    )
    called: list[nn.Module] = []
    hooked = [feedforward[0], attention.query]
    for layer in hooked:
        layer.register_forward_hook(lambda layer, *_: called.append(layer))
    with torch.set_grad_enabled(grad):
        attention(feedforward(torch.randn(1, 4, 16)))
    assert called == hooked


def test_pruned_layers_are_trained() -> None:
    """A hook masks the weights in each call. Without it, the second step failed."""
    model = Activated(Linear(16, 16), nn.GELU(), Linear(16, 16))
    prune.l1_unstructured(model[0], "weight", 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
    assert (model[0].weight == 0).sum() == 128


def test_layers_with_an_update_are_activated_after_it() -> None:
    """Peft adds its update to the output of the layer."""

    class Updated(nn.Module):
        weight = torch.zeros(1)

        def forward(self, x: Tensor) -> Tensor:
            return -x

    x = torch.randn(4, 8)
    with torch.no_grad():
        assert torch.equal(Activated(Updated(), nn.ReLU())(x), (-x).relu())


@pytest.mark.parametrize("weight_normed", [False, True])
@pytest.mark.parametrize(
    ("channels", "out", "options"),
    [
        (12, 12, {"kernel_size": 7, "padding": 3, "groups": 12}),  # depthwise
        (12, 12, {"kernel_size": 4, "padding": 1, "groups": 12, "bias": False}),
        (12, 12, {"kernel_size": 4, "padding": 5, "groups": 12}),
        (12, 12, {"kernel_size": 5, "stride": 2, "groups": 12}),
        (12, 24, {"kernel_size": 5, "groups": 12}),
        (12, 24, {"kernel_size": 8, "padding": 4, "groups": 4}),
        (12, 24, {"kernel_size": 3, "stride": 2, "bias": False}),
        (12, 24, {"kernel_size": 3, "dilation": 2, "padding": 1}),
        (12, 24, {"kernel_size": 1}),
        (12, 24, {"kernel_size": 3, "padding": "same"}),
        (12, 24, {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}),
        (1, 24, {"kernel_size": 5, "stride": 3}),
    ],
)
def test_convolutions_in_two_dimensions_are_convolutions_over_time(
    channels: int, out: int, options: dict[str, Any], weight_normed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "LEAST_POSITIONS", 1)
    torch.manual_seed(0)
    plain: nn.Module = nn.Conv1d(channels, out, **options)
    if weight_normed:
        plain = nn.utils.parametrizations.weight_norm(plain, dim=2)
    x = torch.randn(3, 40, channels).mT
    expected = outcomes(plain, x)
    state = list(plain.state_dict())
    products.use_faster_products(plain)
    assert list(plain.state_dict()) == state
    for one, other in zip(outcomes(plain, x), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    if channels > 1 and options.get("padding") != "same" and "padding_mode" not in options:
        assert plain(x).mT.is_contiguous()
        for batch in (1, 3):  # channels innermost is no default for a batch of one
            with torch.inference_mode():
                assert plain(x[:batch]).mT.is_contiguous()


def test_gradients_of_depthwise_convolutions_under_autocast() -> None:
    torch.manual_seed(0)
    layer, x = products.Conv1d(6, 6, 5, padding=2, groups=6), torch.randn(2, 30, 6)
    expected = outcomes(layer, x.mT)
    with torch.autocast("cpu", torch.bfloat16):
        found = outcomes(layer, x.mT)
    assert [y.dtype for y in found] == [torch.bfloat16, *[torch.float32] * 3]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2 * other.abs().max().item())
