"""Helpers shared by the references and the compiled operators: precision, padding, dropout seeds."""

import torch
from torch import Tensor


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which sums over x are accumulated: float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def zero_padding(x_BHND: Tensor, lengths_B: Tensor) -> Tensor:
    """Zero the rows past each length, by selection rather than multiplication, so that NaN can't spread."""
    keep_BN = torch.arange(x_BHND.shape[2], device=x_BHND.device) < lengths_B.unsqueeze(-1)
    return torch.where(keep_BN[:, None, :, None], x_BHND, 0)


def masked_softmax(scores_BHNS: Tensor, key_lengths_B: Tensor) -> Tensor:
    """Return the softmax over valid keys, [B, H, N, S]; zero at padded keys and where no key is valid."""
    keep_BS = torch.arange(scores_BHNS.shape[-1], device=scores_BHNS.device) < key_lengths_B.unsqueeze(-1)
    padding_B11S = ~keep_BS[:, None, None, :]
    # A finite fill: the softmax of a row of −inf would be NaN, in the backward pass too.
    lowest = torch.finfo(scores_BHNS.dtype).min
    return scores_BHNS.masked_fill(padding_B11S, lowest).softmax(-1).masked_fill(padding_B11S, 0.0)


def dropout_seed(x: Tensor, dropout: float) -> Tensor | None:
    """Draw the seed of one call's dropout mask from PyTorch's generator; None without dropout."""
    return torch.randint(1 << 62, (1,), device=x.device) if dropout > 0 else None
