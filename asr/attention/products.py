"""Linear layers in float32 on the faster of PyTorch's two libraries for a CPU.

PyTorch multiplies matrices of float32 with MKL, which uses AVX-512 on Intel's processors only, and computes
convolutions with oneDNN, which uses it on all. On AMD's processors with AVX-512, a layer takes 0.5 to 0.6 of
the time as a convolution over single positions (docs/kernels.md).
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.environment import processor

# Below, starting a convolution costs more than it saves.
LEAST_ROWS, LEAST_PRODUCTS = 256, 1 << 23


class Linear(nn.Linear):
    """A linear layer that is a convolution where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., M] to [..., K]."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight_KM: Tensor, bias_K: Tensor | None) -> Tensor:
    """Map [..., M] to [..., K], as `torch.nn.functional.linear`, up to rounding."""
    if not _faster_as_convolution(x, weight_KM):
        return F.linear(x, weight_KM, bias_K)
    channels_last = x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)
    # PyTorch leaves a convolution of one position to MKL, but not if it is dilated, which means nothing here.
    y = F.conv2d(channels_last, weight_KM[:, :, None, None], bias_K, dilation=2)
    return y.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def use_faster_products(model: nn.Module) -> None:
    """Make linear layers of another library's model `Linear`, in place."""
    for module in model.modules():
        if type(module) is nn.Linear:  # not subclasses, which may add to the product
            module.__class__ = Linear


@cache
def products_lack_avx512() -> bool:
    """Return whether the processor has AVX-512 and MKL doesn't use it."""
    libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return libraries and processor().startswith("AMD") and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _faster_as_convolution(x: Tensor, weight_KM: Tensor) -> bool:
    if torch.compiler.is_compiling() or x.dtype != torch.float32 or x.device.type != "cpu":
        return False
    rows = x.numel() // x.shape[-1]
    large = rows >= LEAST_ROWS and x.numel() * len(weight_KM) >= LEAST_PRODUCTS
    return large and products_lack_avx512() and not torch.is_autocast_enabled("cpu")
