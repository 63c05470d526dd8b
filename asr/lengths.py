"""Padding masks from lengths, where True means keep, and the lengths that labels need."""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from asr.errors import UserError


def keep_mask(lengths: Tensor, size: int) -> Tensor:
    """Return the mask of valid positions.

    Args:
        lengths: [B] integers, number of valid positions, 0 … size; padding is on the right.
        size: number of positions, T.

    Returns:
        [B, T] bool, True where position < length.

    Raises:
        UserError: the lengths are fractions, as some toolkits have them.

    Example:
        >>> keep_mask(torch.tensor([1, 3]), 3).int().tolist()
        [[1, 0, 0], [1, 1, 1]]
    """
    require_counts(lengths)
    positions = torch.arange(size, device=lengths.device)
    return positions < lengths.unsqueeze(-1)


def require_counts(lengths: Tensor) -> None:
    """Raise UserError for lengths that are fractions or of another type, such as a mask."""
    if lengths.dtype not in (torch.int64, torch.int32):
        raise UserError(
            f"lengths: expected integers, int64 or int32, numbers of valid positions, found {lengths.dtype}"
        )


def zero_padding(x: Tensor, lengths: Tensor) -> Tensor:
    """Set padded positions to zero, even if they contain NaN.

    Args:
        x: [B, T, …].
        lengths: [B] number of valid positions, on any device.

    Returns:
        [B, T, …] with zeros at padded positions; x itself if there are none and the lengths are at hand.
    """
    plain = type(lengths) is Tensor and lengths.device.type == "cpu" and not torch.compiler.is_compiling()
    if plain and bool((lengths >= x.shape[1]).all()):  # saves 2 to 4 % of an encoder
        return x
    mask = keep_mask(lengths.to(x.device), x.shape[1])
    # Much faster on a CPU than masked_fill, which copies first.
    return torch.where(mask.view(*mask.shape, *[1] * (x.dim() - 2)), x, 0)


def frames_needed(tokens: Sequence[int], topology: str) -> int:
    """Return the minimum number of frames for `tokens`: one per token, and for CTC a blank between repeats.

    Example:
        >>> frames_needed([5, 5, 7], "ctc"), frames_needed([5, 5, 7], "hmm")
        (4, 3)
    """
    repeats = sum(map(operator.eq, tokens, tokens[1:])) if topology == "ctc" else 0
    return len(tokens) + repeats
