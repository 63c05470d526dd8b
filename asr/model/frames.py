"""Runs the blocks of an encoder at the frame rates of a schedule.

Where a schedule (`asr.config.schedule`) has a factor ρ > 1, blocks see the means m of runs of ρ consecutive
valid frames; the last run of an utterance may be shorter. Merging joins similar neighbours into runs instead
(A-ToMe, Li et al. 2023; local merging, Götz et al. 2024). The residual stream stays at the encoder's rate:
x ← x + up(f(m) − m), where up repeats a mean for each frame of its run. Neighbouring frames thus remain
different, and labels keep their rate and times; with repeated states up(f(m)) instead, CTC models make many
times as many errors. Zipformer (Yao et al. 2024) also has stacks with different frame rates.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.layer import FrameRate
from asr.config.schedule import Factor, Merging
from asr.lengths import keep_mask, zero_padding


def through_blocks(
    blocks: nn.ModuleList,
    factors: Sequence[Factor],
    x: Tensor,
    lengths: Tensor,
    layer_drop: float = 0.0,
    tap: Callable[[int, Tensor], Tensor] | None = None,
    positions: Callable[[int, int], dict[str, Tensor]] | None = None,
    run_BT: Tensor | None = None,
) -> Tensor:
    """Run the blocks of an encoder.

    Args:
        blocks: blocks that map [B, T, M] with [B] lengths to [B, T, M], and take an argument `rate` if it
            isn't the encoder's.
        factors: ρ of each block, or how frames are merged for it.
        x: [B, T, M].
        lengths: [B] valid frames.
        layer_drop: probability of skipping a block, drawn for each block and utterance; 0 outside training.
        tap: see `Encoder.forward`.
        positions: maps the number of frames and ρ to further arguments of the blocks.
        run_BT: run of each frame, see `merge`, if all factors are 1.

    Returns:
        States of the last block at the encoder's rate, [B, T, M].
    """
    # A convolution before the blocks leaves time innermost. Sums keep this layout, and each normalisation
    # would copy it.
    x = x.contiguous()
    for factor, group in itertools.groupby(range(len(blocks)), key=factors.__getitem__):
        runs = similar_runs(x, lengths, factor) if isinstance(factor, Merging) else run_BT
        size = factor if isinstance(factor, int) else 1
        start, short, rate = pool(x, lengths, size, runs)
        given: dict[str, Any] = positions(start.shape[1], size) if positions else {}
        if rate is not None:
            given["rate"] = rate
        z = start
        for index in group:
            y = blocks[index](z, short, **given)
            if layer_drop:
                kept_B11 = torch.rand(len(y), 1, 1, device=y.device) >= layer_drop
                y = torch.where(kept_B11, y, z)
            z = y
            if tap is not None and index + 1 < len(blocks):
                x = tap(index + 1, restored(x, start, z, size, runs))
                z = start = pool(x, lengths, size, runs)[0]
        x = restored(x, start, z, size, runs)
    return x


def pool(
    x: Tensor, lengths: Tensor, factor: int, run_BT: Tensor | None = None
) -> tuple[Tensor, Tensor, FrameRate | None]:
    """Average runs of consecutive valid frames.

    Args:
        x: [B, T, M], any values at padding.
        lengths: [B] valid frames.
        factor: ρ, length of a run; the last run of an utterance may be shorter.
        run_BT: run of each frame, for runs of any length; see `merge`.

    Returns:
        [B, ⌈T/ρ⌉, M] means, zero at padding; [B] valid means; and their rate. For ρ = 1: x, lengths and None.
    """
    if run_BT is not None:
        return merge(x, lengths, run_BT)
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
        [B, N, M] means; [B] valid means; and their rate, with number of frames and mean position of each run.
    """
    B, T, _ = x.shape
    runs = int(run_BT.max()) + 1
    keep_BT, place_X = keep_mask(lengths.to(x.device), T), _places(run_BT, runs)

    def summed(values: Tensor) -> Tensor:
        flat = values.flatten(0, 1)
        return flat.new_zeros(B * runs, *flat.shape[1:]).index_add(0, place_X, flat).unflatten(0, (B, runs))

    sizes_BN = summed(keep_BT.float()).clamp(min=1)
    places_BN = summed(keep_BT * torch.arange(T, device=x.device, dtype=torch.float32)) / sizes_BN
    means = summed(zero_padding(x, lengths)) / sizes_BN.unsqueeze(-1).to(x.dtype)
    counts_B = run_BT.masked_fill(~keep_BT, -1).amax(1) + 1
    return means, counts_B, FrameRate(1, sizes_BN.log(), places_BN)


def _places(run_BT: Tensor, runs: int) -> Tensor:
    """Return the place of each frame's run among those of all utterances, [B · T]."""
    return (run_BT + runs * torch.arange(len(run_BT), device=run_BT.device).unsqueeze(1)).flatten()


@torch.no_grad()
def similar_runs(x: Tensor, lengths: Tensor, merging: Merging) -> Tensor:
    """Join neighbouring runs of valid frames, the most similar first.

    Each step joins the pair of runs with the least s_i s_j / (s_i + s_j) · ‖m_i − m_j‖² (Ward 1963), where s
    are their numbers of frames and m their means; the earlier of equal pairs.

    Args:
        x: [B, T, M], any values at padding.
        lengths: [B] valid frames.
        merging: longest run, and share of the valid frames that join the one before, rounded down. Fewer do
            where all other pairs exceed the longest run.

    Returns:
        Index of each frame's run, from 0, [B, T]; at padding that of the last run.
    """
    T, cap = x.shape[1], min(merging.cap, x.shape[1])
    wide = x.float()
    gaps = [(wide[:, d:] - wide[:, :-d]).square().sum(-1) for d in range(1, cap)]
    errors = [pairs := wide.new_zeros(x.shape[:2])]
    for size in range(2, cap + 1):  # ‖x_i − x_j‖² of all pairs in each run of `size` frames
        pairs = pairs[:, : T - size + 1] + sum(gaps[d - 1][:, size - 1 - d :] for d in range(1, size))
        errors.append(pairs / size)
    rows = zip(*(own.tolist() for own in errors), strict=True)
    starts = [
        _starts(own, frames, int(merging.share * frames)) + [False] * (T - frames)
        for own, frames in zip(rows, lengths.tolist(), strict=True)
    ]
    return (torch.tensor(starts, device=x.device).long().cumsum(1) - 1).clamp(min=0)


def _starts(errors: Sequence[list[float]], frames: int, merges: int) -> list[bool]:
    """Return, for each frame of an utterance, whether it starts a run.

    Args:
        errors: squared distances of frames from their mean, summed over a run, by its size − 1 and first
            frame. Ward's criterion is the increase of this sum.
        frames: number of frames.
        merges: maximum number of pairs to join.
    """
    before, after = [1] * (frames + 1), [1] * (frames + 1)  # sizes of the runs that end and start at a frame

    def joined(place: int) -> tuple[float, int, int, int]:
        left, right = before[place], after[place]
        apart = errors[left - 1][place - left] + errors[right - 1][place]
        return errors[left + right - 1][place - left] - apart, place, left, right

    heap = [joined(place) for place in range(1, frames)]
    heapq.heapify(heap)
    while merges and heap:
        _, place, left, right = heapq.heappop(heap)
        if (before[place], after[place]) != (left, right):
            continue  # one of the two has been joined to another run
        before[place] = after[place] = 0
        first, end = place - left, place + right
        after[first] = before[end] = left + right
        for other in (first, end):
            if 0 < other < frames and before[other] + after[other] <= len(errors):
                heapq.heappush(heap, joined(other))
        merges -= 1
    return [size > 0 for size in after[:frames]]


def restored(x: Tensor, start: Tensor, z: Tensor, factor: int, run_BT: Tensor | None = None) -> Tensor:
    """Add the change of means to the frames that they stand for: x + up(z − start), or z for ρ = 1.

    Args:
        x: [B, T, M].
        start, z: [B, ⌈T/ρ⌉, M], the means of x before and after the blocks.
        factor: ρ.
        run_BT: see `pool`.
    """
    if run_BT is not None:
        change = (z - start).flatten(0, 1)
        return x + change.index_select(0, _places(run_BT, z.shape[1])).view_as(x)
    if factor == 1:
        return z
    change = (z - start).unsqueeze(2).expand(-1, -1, factor, -1).flatten(1, 2)
    return x + change[:, : x.shape[1]]
