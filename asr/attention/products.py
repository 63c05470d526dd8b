"""Linear layers, and convolutions over time, on the fastest of PyTorch's products for a CPU.

PyTorch multiplies matrices of float32 with MKL, which uses AVX-512 on Intel's processors only. oneDNN uses it
on all: on AMD's processors with AVX-512, a layer takes 0.5 to 0.8 of the time. There, float32 runs on oneDNN:
in training as a convolution over single positions, without gradients as a product that adds the bias and
applies the activation as it writes. Without gradients, bfloat16 runs on this product on other processors,
too. A recogniser converts its weights and lays them out for oneDNN once instead of in each call. Measurements
are in recipes/map/results/archive.md#linear-layers.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.parametrize import is_parametrized

from asr.environment import processor
from attention_ext.autograd import needs_gradient

# Below, starting a convolution costs more than it saves.
LEAST_ROWS, LEAST_PRODUCTS = 256, 1 << 23
LEAST_PRODUCTS_ONCE = 1 << 20  # the same for oneDNN's product, without gradients
LEAST_POSITIONS = 512  # of a batch, for a convolution in two dimensions
# oneDNN's names. Its ReLU would return 0 for NaN.
ACTIVATIONS: dict[object, str] = {F.gelu: "gelu", nn.SiLU: "swish"}


class Linear(nn.Linear):
    """A linear layer on the faster product.

    Attributes:
        keeps_packed: whether to keep a copy of the weights, laid out for oneDNN; see `keep_packed`.
    """

    keeps_packed = False

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., M] to [..., K]."""
        return linear(x, [self])

    def train(self, mode: bool = True) -> "Linear":
        """Set the mode; a layer in training mode packs nothing any more, because its weights will change."""
        if mode:
            self.keeps_packed = False
            _packed.pop(self, None)
        return super().train(mode)


class Activated(nn.Sequential):
    """A linear layer, an activation, and what follows; the first two in one pass where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., M] to [..., K]."""
        layer, activation, *rest = self.children()
        y = linear(x, [cast("nn.Linear", layer)], activation)
        for module in rest:
            y = module(y)
        return y


class Conv1d(nn.Conv1d):
    """A convolution over time that computes in two dimensions where that is faster.

    Only in two dimensions does PyTorch keep channels innermost on a CPU: depthwise convolutions take a
    twentieth of the time, wav2vec 2.0's positions half (docs/kernels.md). Input and output are [B, C, T] as
    in `nn.Conv1d`; the output is stored as [B, T, C].
    """

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # A graph would be tied to batches of one, or of several.
        if x.device.type != "cpu" or x.dim() != 3 or torch.compiler.is_compiling():
            return super()._conv_forward(x, weight, bias)
        if self.padding_mode != "zeros" or isinstance(self.padding, str) or self.in_channels == 1:
            return super()._conv_forward(x, weight, bias)
        depthwise = self.groups == self.in_channels == self.out_channels
        # Each call rearranges the weights, of which depthwise convolutions have few.
        if not depthwise and len(x) * x.shape[2] < LEAST_POSITIONS:
            return super()._conv_forward(x, weight, bias)
        x_BTC = x.mT.contiguous()
        if (self.kernel_size, self.stride, self.padding, self.groups) == ((1,), (1,), (0,), 1):
            return _product(x_BTC, weight.squeeze(2), bias).mT
        plain = depthwise and self.stride == self.dilation == (1,) and self.padding < self.kernel_size
        if plain and needs_gradient(*(y for y in (x_BTC, weight, bias) if y is not None)):
            dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
            given = (y if y is None else y.to(dtype) for y in (x_BTC, weight, bias))
            y_BTC: Tensor = _Depthwise.apply(*given, self.padding[0])  # type: ignore[no-untyped-call]
            return y_BTC.mT
        steps = (1, *self.stride), (0, *self.padding), (1, *self.dilation)
        return F.conv2d(x_BTC.mT.unsqueeze(2), weight.unsqueeze(2), bias, *steps, self.groups).squeeze(2)


class _Depthwise(torch.autograd.Function):
    """A depthwise convolution over time, [B, T, C] with kernels [C, 1, W] and padding P to [B, T', C].

    PyTorch's gradients take four times as long.
    """

    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, kernel_C1W: Tensor, bias_C: Tensor | None, padding: int) -> Tensor:
        ctx.save_for_backward(x_BTC, kernel_C1W)
        ctx.padding, ctx.has_bias = padding, bias_C is not None
        return _depthwise(x_BTC, kernel_C1W, bias_C, padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTC: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x_BTC, kernel_C1W = ctx.saved_tensors
        grad_BTC, width, padding = grad_BTC.contiguous(), kernel_C1W.shape[2], ctx.padding
        grad_x_BTC = _depthwise(grad_BTC, kernel_C1W.flip(2), None, width - 1 - padding)
        dtype = torch.promote_types(x_BTC.dtype, torch.float32)
        wide_BTC, frames = grad_BTC.to(dtype), grad_BTC.shape[1]
        padded_BTC = F.pad(x_BTC.to(dtype), (0, 0, padding, padding))
        taps = [(padded_BTC[:, tap : tap + frames] * wide_BTC).sum((0, 1)) for tap in range(width)]
        grad_kernel_C1W = torch.stack(taps, dim=-1).unsqueeze(1).to(kernel_C1W.dtype)
        grad_bias_C = wide_BTC.sum((0, 1)).to(kernel_C1W.dtype) if ctx.has_bias else None
        return grad_x_BTC, grad_kernel_C1W, grad_bias_C, None


def _depthwise(x_BTC: Tensor, kernel_C1W: Tensor, bias_C: Tensor | None, padding: int) -> Tensor:
    x_BC1T, kernel_C11W = x_BTC.mT.unsqueeze(2), kernel_C1W.unsqueeze(2)
    y_BC1T = F.conv2d(x_BC1T, kernel_C11W, bias_C, padding=(0, padding), groups=len(kernel_C1W))
    return y_BC1T.squeeze(2).mT


class Packed(NamedTuple):
    """Weights of one or several layers for oneDNN, and the parameters that they come from.

    Because it holds the parameters, no new one can have the same identity.
    """

    parameters: list[Tensor]
    versions: list[tuple[int, int, int]]
    weight_KM: Tensor
    bias_K: Tensor | None


_packed: WeakKeyDictionary[nn.Linear, dict[tuple[torch.dtype, int], Packed]] = WeakKeyDictionary()


def linear(x: Tensor, layers: Sequence[nn.Linear], activation: nn.Module | None = None) -> Tensor:
    """Apply linear layers to the same input, and perhaps an activation, up to rounding.

    Args:
        x: [..., M].
        layers: one layer or several; with an activation, one of any type.
        activation: an activation.

    Returns:
        The outputs side by side, [..., ΣK].
    """
    name = ""
    if activation is not None:
        name = _fused_name(activation)
        if not name or not is_plain(layers[0]):
            y: Tensor = activation(layers[0](x))
            return y
    if dtype := _type_on_onednn(x, layers):
        weight_KM, bias_K = _operands(layers, dtype)
        # Private, but what PyTorch's compiler calls. No public function takes packed weights or fuses an
        # activation (what compilation costs: recipes/map/results/archive.md#linear-layers).
        return torch.ops.mkldnn._linear_pointwise(x.to(dtype), weight_KM, bias_K, name or "none", [], "none")
    y = _product(x, *_joined(layers))
    return y if activation is None else activation(y)


def is_plain(layer: nn.Module) -> bool:
    """Return whether a layer is only its product: it has no update of peft, and no hook."""
    hooks = layer._forward_pre_hooks, layer._forward_hooks, layer._backward_pre_hooks, layer._backward_hooks
    return type(layer) in (nn.Linear, Linear) and not any(hooks)


def use_faster_products(model: nn.Module) -> None:
    """Make linear layers and convolutions of another library's model `Linear` and `Conv1d`, in place."""
    for module in model.modules():
        kind = type(module)
        if kind is nn.Linear:  # not subclasses, which may add to the product
            module.__class__ = Linear
        elif kind is nn.Conv1d:
            module.__class__ = Conv1d
        elif is_parametrized(module) and kind.__bases__ == (nn.Conv1d,):
            kind.__bases__ = (Conv1d,)  # PyTorch makes a class for each such module


def keep_packed(model: nn.Module) -> None:
    """Let the linear layers keep a packed copy of their weights once they are used without gradients.

    This is for models in evaluation mode: a copy isn't renewed after a change that PyTorch doesn't count,
    such as a step of a fused optimiser or a write through `.data` or NumPy. `train()` drops the copies.
    """
    for module in model.modules():
        if isinstance(module, Linear):
            module.keeps_packed = True


@cache
def products_lack_avx512() -> bool:
    """Return whether the processor has AVX-512 and MKL doesn't use it."""
    libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return libraries and processor().startswith("AMD") and torch.backends.cpu.get_cpu_capability() == "AVX512"


@cache
def onednn_serves(dtype: torch.dtype) -> bool:
    """Return whether this PyTorch has oneDNN's product for a type, as it is called here."""
    if not torch.backends.mkldnn.is_available():
        return False
    operators = torch.ops.mkldnn
    x, weight_KM, bias_K = (torch.ones(*shape, dtype=dtype, device="cpu") for shape in ((1, 2), (3, 2), (3,)))
    try:
        if dtype == torch.bfloat16 and not operators._is_mkldnn_bf16_supported():
            return False
        packed_KM = operators._reorder_linear_weight(weight_KM, None)
        y = operators._linear_pointwise(x, packed_KM, bias_K, "relu", [], "none")
    except (AttributeError, RuntimeError):  # another PyTorch
        return False
    return bool((y == 3).all())


def _fused_name(activation: nn.Module) -> str:
    """Return oneDNN's name for an activation, empty if it has none."""
    if type(activation) is nn.GELU:
        return ACTIVATIONS[F.gelu] if activation.approximate == "none" else ""
    kind = type(activation)
    if kind.__module__ == "transformers.activations":  # its GELU has `act`
        return ACTIVATIONS.get(getattr(activation, "act", kind), "")
    return ACTIVATIONS.get(kind, "")


def _type_on_onednn(x: Tensor, layers: Sequence[nn.Linear]) -> torch.dtype | None:
    """Return the type of oneDNN's product, where that is the fastest; else None."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or x.device.type != "cpu" or not x.numel():
        return None
    types = {x.dtype, layers[0].weight.dtype}
    if type(x) is not Tensor or not types <= {torch.float32, torch.bfloat16}:
        return None
    if x.shape[-1] != layers[0].in_features:  # PyTorch's error is clearer
        return None
    if torch.is_autocast_enabled("cpu"):
        types = {torch.get_autocast_dtype("cpu")}
    if types == {torch.bfloat16}:
        return torch.bfloat16 if onednn_serves(torch.bfloat16) else None
    large = x.numel() * sum(layer.out_features for layer in layers) >= LEAST_PRODUCTS_ONCE
    serves = types == {torch.float32} and large and products_lack_avx512() and onednn_serves(torch.float32)
    return torch.float32 if serves else None


def _faster_as_convolution(x: Tensor, weight_KM: Tensor) -> bool:
    if torch.compiler.is_compiling() or x.dtype != torch.float32 or x.device.type != "cpu":
        return False
    rows = x.shape[:-1].numel()
    large = rows >= LEAST_ROWS and x.numel() * len(weight_KM) >= LEAST_PRODUCTS
    return large and products_lack_avx512() and not torch.is_autocast_enabled("cpu")


def _product(x: Tensor, weight_KM: Tensor, bias_K: Tensor | None) -> Tensor:
    product = _as_convolution if _faster_as_convolution(x, weight_KM) else F.linear
    return product(x, weight_KM, bias_K)


def _as_convolution(x: Tensor, weight_KM: Tensor, bias_K: Tensor | None) -> Tensor:
    channels_last = x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)
    # PyTorch leaves a convolution of one position to MKL, but not if it is dilated, which means nothing here.
    y = F.conv2d(channels_last, weight_KM[:, :, None, None], bias_K, dilation=2)
    return y.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def _joined(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Return the weights of several layers as one, and their biases."""
    if len(layers) == 1:
        return layers[0].weight, layers[0].bias
    weights: list[Tensor] = [layer.weight for layer in layers]
    given: list[Tensor | None] = [layer.bias for layer in layers]
    bias = None
    if any(x is not None for x in given):  # Whisper's keys have none
        pairs = zip(weights, given, strict=True)
        bias = torch.cat([w.new_zeros(len(w)) if x is None else x for w, x in pairs])
    return torch.cat(weights), bias


def _operands(layers: Sequence[nn.Linear], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return weights and biases for oneDNN, packed if the first layer keeps them."""
    parameters = [x for layer in layers for x in (layer.weight, layer.bias) if x is not None]
    # Without versions, changed weights would go unnoticed.
    keeps = getattr(layers[0], "keeps_packed", False) and not any(x.is_inference() for x in parameters)
    kept = _packed.setdefault(layers[0], {}) if keeps else {}
    versions = [(id(x), x.data_ptr(), x._version) for x in parameters] if keeps else []
    found = kept.get((dtype, len(layers)))
    if found and found.versions == versions:
        return found.weight_KM, found.bias_K
    weight_KM, bias_K = _joined(layers)
    weight_KM, bias_K = weight_KM.to(dtype), None if bias_K is None else bias_K.to(dtype)
    if keeps:
        weight_KM = torch.ops.mkldnn._reorder_linear_weight(weight_KM.contiguous(), None)
        kept[dtype, len(layers)] = Packed(parameters, versions, weight_KM, bias_K)
    return weight_KM, bias_K
