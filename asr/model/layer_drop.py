"""The blocks of pretrained encoders, one after the other."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def through_blocks(
    blocks: nn.ModuleList,
    x: Tensor,
    lengths: Tensor,
    layer_drop: float,
    tap: Callable[[int, Tensor], Tensor] | None,
    **positions: Tensor,
) -> Tensor:
    """Run the blocks of an encoder; see `PretrainedEncoder`.

    Args:
        blocks: blocks that map [B, T, M] with [B] lengths to [B, T, M].
        x: [B, T, M].
        lengths: [B] valid frames.
        layer_drop: probability of skipping a block, drawn for each block and utterance; 0 outside training.
        tap: see `PretrainedEncoder.forward`.
        positions: further arguments of each block.

    Returns:
        States of the last block, [B, T, M].
    """
    for number, block in enumerate(blocks, 1):
        y = block(x, lengths, **positions)
        if layer_drop:
            kept_B11 = torch.rand(len(y), 1, 1, device=y.device) >= layer_drop
            y = torch.where(kept_B11, y, x)
        x = tap(number, y) if tap is not None and number < len(blocks) else y
    return x
