"""Rotary positions: queries and keys turned by angles that grow with their position."""

import torch
from torch import Tensor

BASE = 10_000.0


def rotate(x_BHND: Tensor) -> Tensor:
    """Turn the pair (x_d, x_{d+D/2}) at position n by the angle n · 10000^(−2d/D).

    *RoFormer* eq. 34, the halves paired as in GPT-NeoX. Norms stay; products of rotated queries and keys
    depend on positions by their difference only.

    Args:
        x_BHND: D even.

    Returns:
        [B, H, N, D] of the same type.
    """
    N, D = x_BHND.shape[2:]
    dtype = torch.promote_types(x_BHND.dtype, torch.float32)
    rate_D2 = BASE ** (-2.0 * torch.arange(D // 2, device=x_BHND.device, dtype=dtype) / D)
    angle_ND2 = torch.arange(N, device=x_BHND.device, dtype=dtype).unsqueeze(-1) * rate_D2
    cos, sin = angle_ND2.cos(), angle_ND2.sin()
    first, second = x_BHND.to(dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x_BHND.dtype)
