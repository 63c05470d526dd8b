"""Sign-random-projection hashing on the compiled kernels."""

import torch
from torch import Tensor

from attention_ext.autograd import Operator
from attention_ext.tensors import compute_dtype


def hash_sign(x_BHND: Tensor, planes_PD: Tensor) -> Tensor:
    """Hash every vector to the signs of its dot products with P planes; equals `reference.hash_sign`.

    Products too close to zero for float32 are computed in float64, so that the bits are the reference's.

    Args:
        x_BHND: vectors of any floating type. The hash of a row that holds NaN is unspecified.
        planes_PD: normals of the planes, P = 1 … 63, D ≥ 1.

    Returns:
        [B, H, N] int64; bit p is 1 if and only if the product with plane p is positive.
    """
    return HASH(x_BHND, planes_PD)


def subtract_mean(x_BHND: Tensor, lengths_B: Tensor) -> Tensor:
    """Subtract the mean of the valid vectors of each sequence and head; equals `reference.subtract_mean`.

    Args:
        x_BHND: vectors of any floating type.
        lengths_B: valid positions of each sequence, 0 … N.

    Returns:
        [B, H, N, D] in float32, or float64 for float64; zeros at padding.
    """
    return MEAN(x_BHND, lengths_B)


HASH = Operator("hash_sign", lambda x, planes: x.new_empty(x.shape[:3], dtype=torch.int64))
MEAN = Operator("subtract_mean", lambda x, lengths: x.new_empty(x.shape, dtype=compute_dtype(x)))
