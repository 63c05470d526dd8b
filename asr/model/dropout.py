"""Dropout with cheaper random numbers on a CPU than those of `torch.nn.Dropout`."""

import torch
from torch import Tensor, nn

LEVELS = 1 << 16


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014): sets elements to zero with probability p, else scales by 1/(1 − p).

    On a CPU, an element takes 16 random bits instead of 64, so p is rounded to a multiple of 2⁻¹⁶.

    Args:
        probability: p, 0 … 1.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of any shape to one of the same shape; in evaluation mode, return it."""
        level = round(self.probability * LEVELS)
        if not self.training or level == 0:
            return x
        if x.device.type != "cpu" or level == LEVELS:
            return nn.functional.dropout(x, self.probability)
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        # 0 or 1, compared in place: converting from bool would take longer than drawing random numbers.
        keep = bits.view(torch.int16)[: x.numel()].view(x.shape).ge_(level - LEVELS // 2)
        scale = LEVELS / (LEVELS - level)
        if x.dtype.itemsize == 2:  # the bits of the factor, times 0 or 1
            return x * keep.mul_(int(torch.tensor(scale, dtype=x.dtype).view(torch.int16))).view(x.dtype)
        return x * keep.to(x.dtype).mul_(scale)

    def extra_repr(self) -> str:
        """Return p."""
        return f"p={self.probability:g}"
