"""Sign-random-projection hashing on the compiled kernels."""

import functools

import torch
from torch import Tensor

from attention_ext.library import require


def hash_sign(x_BHND: Tensor, planes_PD: Tensor) -> Tensor:
    """Hash every vector to the signs of its dot products with P planes; equals `reference.hash_sign`.

    Products too close to zero for float32 are computed in float64, so that the bits are the reference's.

    Args:
        x_BHND: vectors of any floating type. The hash of a row that holds NaN is unspecified.
        planes_PD: normals of the planes, P = 1 … 63, D ≥ 1.

    Returns:
        [B, H, N] int64; bit p is 1 if and only if the product with plane p is positive.
    """
    if not torch.compiler.is_compiling():
        require(x_BHND.device.type)
        register()
    return torch.ops.attention_ext.hash_sign(x_BHND, planes_PD)


@functools.cache
def register() -> None:
    """Register the output's shape with PyTorch."""

    @torch.library.register_fake("attention_ext::hash_sign")
    def _(x: Tensor, planes: Tensor) -> Tensor:
        return x.new_empty(x.shape[:3], dtype=torch.int64)
