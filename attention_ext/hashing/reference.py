"""Sign-random-projection hashing in plain PyTorch, the oracle for the compiled kernels."""

import torch
from torch import Tensor

from attention_ext.tensors import compute_dtype, zero_padding

MAX_BITS = 63  # the sign bit of the int64 stays zero
STEPS = 2.0**22  # of the mean's grid, in the largest magnitude: such integers are exact in float32


def hash_sign(x_BHND: Tensor, planes_PD: Tensor) -> Tensor:
    """Hash every vector to the signs of its dot products with P planes.

    *Fast Transformers with Clustered Attention* §3.2.2, after Charikar (2002). The products are
    computed in float64 for every input type, so that all backends agree on the bits.

    Args:
        x_BHND: vectors of any floating type. The hash of a row that holds NaN is unspecified.
        planes_PD: normals of the P ≤ 63 planes.

    Returns:
        [B, H, N] int64; bit p is 1 if and only if the product with plane p is positive.

    Example:
        >>> x = torch.tensor([[1.0, -1.0], [-2.0, 3.0]]).view(1, 1, 2, 2)
        >>> hash_sign(x, torch.eye(2)).tolist()
        [[[1, 2]]]
    """
    bits = planes_PD.shape[0]
    if bits > MAX_BITS:
        raise ValueError(f"at most {MAX_BITS} bits fit in a hash, found {bits} planes")
    products_BHNP = x_BHND.double() @ planes_PD.double().T
    place_P = 1 << torch.arange(bits, device=x_BHND.device)
    return torch.where(products_BHNP > 0, place_P, 0).sum(-1)


def subtract_mean(x_BHND: Tensor, lengths_B: Tensor) -> Tensor:
    """Subtract the mean of the valid vectors of each sequence and head.

    Distances between vectors stay the same, but sign hashes of vectors far from the origin hardly differ.
    The mean is that of the vectors rounded to a grid, so that the sum is exact: no bit depends on its order,
    hence none on the backend, on the batch or on padding.

    Args:
        x_BHND: vectors of any floating type.
        lengths_B: valid positions of each sequence, 0 … N.

    Returns:
        [B, H, N, D] in float32, or float64 for float64; zeros at padding. Unspecified where a valid value of
        the sequence is infinite or NaN.

    Example:
        >>> x = torch.tensor([0.0, 4.0, 100.0]).view(1, 1, 3, 1)
        >>> subtract_mean(x, torch.tensor([2])).flatten().tolist()
        [-2.0, 2.0, 0.0]
    """
    if x_BHND.shape[2] == 0:
        return x_BHND.to(compute_dtype(x_BHND))
    x_BHND = zero_padding(x_BHND.to(compute_dtype(x_BHND)), lengths_B)
    largest_BH11 = x_BHND.abs().amax((2, 3), keepdim=True)
    step_BH11 = (largest_BH11 / STEPS).clamp(min=torch.finfo(x_BHND.dtype).tiny)
    sum_BH1D = (x_BHND / step_BH11).round().double().sum(2, keepdim=True)
    mean_BH1D = sum_BH1D / lengths_B.view(-1, 1, 1, 1).clamp(min=1) * step_BH11.double()
    return zero_padding(x_BHND - mean_BH1D.to(x_BHND.dtype), lengths_B)
