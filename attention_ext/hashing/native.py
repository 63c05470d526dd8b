"""Sign-random-projection hashing by the compiled kernels."""

import torch
from torch import Tensor

from attention_ext.library import require


def hash_sign(x_BHND: Tensor, planes_PD: Tensor) -> Tensor:
    """Hash every vector to the signs of its dot products with P planes, as `reference.hash_sign` does.

    The bits are the reference's: a product that float32 cannot tell from zero is taken in float64.

    Args:
        x_BHND: vectors of any floating type. The hash of a row that holds NaN is unspecified.
        planes_PD: normals of the P ≤ 63 planes.

    Returns:
        [B, H, N] int64; bit p is 1 exactly when the product with plane p is above zero.
    """
    if not torch.compiler.is_compiling():
        require(x_BHND.device.type)
    return torch.ops.attention_ext.hash_sign(x_BHND, planes_PD)


def register() -> None:
    """Tell PyTorch the output's shape; called once, when the library is loaded."""

    @torch.library.register_fake("attention_ext::hash_sign")
    def _(x: Tensor, planes: Tensor) -> Tensor:
        return x.new_empty(x.shape[:3], dtype=torch.int64)
