"""Fixed random directions for hashing vectors, stored with the model."""

import torch
from torch import Tensor

from asr.errors import UserError

LARGEST_HEAD = 256
SEED = 2020


def fixed_normal(*shape: int) -> Tensor:
    """Return standard normal numbers, the same on every call and machine, without the global generator."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED))


def slice_head(directions: Tensor, dim: int, axis: int) -> Tensor:
    """Return the first D entries along an axis of size `LARGEST_HEAD`.

    Raises:
        UserError: D is too large.
    """
    if dim > LARGEST_HEAD:
        raise UserError(f"head_dim={dim}: mechanisms with hashing support heads of at most {LARGEST_HEAD}")
    return directions.narrow(axis, 0, dim)
