"""Sign-random-projection hashing in plain PyTorch, the oracle for the compiled kernels."""

import torch
from torch import Tensor

MAX_BITS = 63  # the sign bit of the int64 stays zero


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
