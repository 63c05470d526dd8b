"""Runs the blocks of an encoder at the frame rates of a schedule.

Where a schedule (`asr.config.schedule`) has a factor ρ > 1, blocks see the means m of runs of ρ consecutive
valid frames; the last run of an utterance may be shorter. The residual stream stays at the encoder's rate:
x ← x + up(f(m) − m), where up repeats a mean for each frame of its run. Neighbouring frames thus remain
different, and labels keep their rate and times; with repeated states up(f(m)) instead, CTC models make many
times as many errors. Zipformer (Yao et al. 2024) also has stacks with different frame rates.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.layer import FrameRate
from asr.lengths import keep_mask, zero_padding


def through_blocks(
    blocks: nn.ModuleList,
    factors: Sequence[int],
    x: Tensor,
    lengths: Tensor,
    layer_drop: float = 0.0,
    tap: Callable[[int, Tensor], Tensor] | None = None,
    positions: Callable[[int, int], dict[str, Tensor]] | None = None,
) -> Tensor:
    """Run the blocks of an encoder.

    Args:
        blocks: blocks that map [B, T, M] with [B] lengths to [B, T, M], and take an argument `rate` if it
            isn't the encoder's.
        factors: ρ of each block.
        x: [B, T, M].
        lengths: [B] valid frames.
        layer_drop: probability of skipping a block, drawn for each block and utterance; 0 outside training.
        tap: see `Encoder.forward`.
        positions: maps the number of frames and ρ to further arguments of the blocks.

    Returns:
        States of the last block at the encoder's rate, [B, T, M].
    """
    for factor, run in itertools.groupby(range(len(blocks)), key=factors.__getitem__):
        start, short, rate = pool(x, lengths, factor)
        given: dict[str, Any] = positions(start.shape[1], factor) if positions else {}
        if rate is not None:
            given["rate"] = rate
        z = start
        for index in run:
            y = blocks[index](z, short, **given)
            if layer_drop:
                kept_B11 = torch.rand(len(y), 1, 1, device=y.device) >= layer_drop
                y = torch.where(kept_B11, y, z)
            z = y
            if tap is not None and index + 1 < len(blocks):
                x = tap(index + 1, restored(x, start, z, factor))
                z = start = pool(x, lengths, factor)[0]
        x = restored(x, start, z, factor)
    return x


def pool(x: Tensor, lengths: Tensor, factor: int) -> tuple[Tensor, Tensor, FrameRate | None]:
    """Average runs of consecutive valid frames.

    Args:
        x: [B, T, M], any values at padding.
        lengths: [B] valid frames.
        factor: ρ, length of a run; the last run of an utterance may be shorter.

    Returns:
        [B, ⌈T/ρ⌉, M] means, zero at padding; [B] valid means; and their rate. For ρ = 1: x, lengths and None.
    """
    if factor == 1:
        return x, lengths, None
    short = (lengths + factor - 1) // factor
    frames = (x.shape[1] + factor - 1) // factor
    first_N = factor * torch.arange(frames, device=x.device)
    sizes_BN = (lengths.to(x.device).unsqueeze(-1) - first_N).clamp(1, factor)
    runs = F.pad(zero_padding(x, lengths), (0, 0, 0, factor - 1))
    # Every factor-th frame from each offset: a graph can't know that the number of frames is divisible.
    total = sum(runs[:, offset : offset + x.shape[1] : factor] for offset in range(factor))
    means = total / sizes_BN.unsqueeze(-1).to(x.dtype)
    even = x.device.type == "cpu" and not torch.compiler.is_compiling() and not bool((lengths % factor).any())
    log_sizes_BN = None if even else (sizes_BN.float() / factor).log()
    return means, short, FrameRate(factor, log_sizes_BN)


def merge(x: Tensor, lengths: Tensor, run_BT: Tensor) -> tuple[Tensor, Tensor, FrameRate]:
    """Average runs of consecutive valid frames of any length.

    Args:
        x: [B, T, M].
        lengths: [B] valid frames.
        run_BT: index of each frame's run, from 0.

    Returns:
        [B, N, M] means; [B] valid means; and their rate, with the number of frames of each run.
    """
    B, _, M = x.shape
    runs = int(run_BT.max()) + 1
    keep_BT = keep_mask(lengths, x.shape[1])
    sizes_BN = x.new_zeros(B, runs).scatter_add(1, run_BT, keep_BT.to(x.dtype))
    total = x.new_zeros(B, runs, M).scatter_add(
        1, run_BT.unsqueeze(-1).expand(-1, -1, M), zero_padding(x, lengths)
    )
    sizes_BN = sizes_BN.clamp(min=1)
    counts_B = run_BT.masked_fill(~keep_BT, -1).amax(1) + 1
    return total / sizes_BN.unsqueeze(-1), counts_B, FrameRate(1, sizes_BN.float().log())


def restored(x: Tensor, start: Tensor, z: Tensor, factor: int) -> Tensor:
    """Add the change of means to the frames that they stand for: x + up(z − start), or z for ρ = 1.

    Args:
        x: [B, T, M].
        start, z: [B, ⌈T/ρ⌉, M], the means of x before and after the blocks.
        factor: ρ.
    """
    if factor == 1:
        return z
    change = (z - start).unsqueeze(2).expand(-1, -1, factor, -1).flatten(1, 2)
    return x + change[:, : x.shape[1]]
