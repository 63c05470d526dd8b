"""Near-field attention on the compiled kernels, with its derivative."""

from typing import Any

import torch
from torch import Tensor

from attention_ext.autograd import DifferentiableOperator, needs_gradient
from attention_ext.tensors import compute_dtype, dropout_seed


def near_attention(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHNE: Tensor,
    groups_BHN: Tensor,
    lengths_B: Tensor,
    clusters: int,
    topk: int,
    window: int,
    dropout: float = 0.0,
) -> Tensor:
    """Attend to keys near each query by its own logits, to others by its cluster's; equals the reference.

    The gradients are exact, with groups and top keys held constant. Sums are accumulated in float32 (float64
    for float64). Memory grows with N·(D + E) + C·(D + E + K); in the CPU's backward pass, with N·C for each
    head in progress. The queries' logits in their windows, N·(2·W + 16) numbers, are stored only on the CPU
    and if a backward pass may follow. Padded positions are never read.

    Args:
        q_BHND, k_BHND, v_BHNE: queries, keys and values of the same type.
        groups_BHN: int32 cluster of each query, 0 … min(C, N) − 1; anything at padding.
        lengths_B: valid positions of each sequence.
        clusters: C, 1 … 1024.
        topk: K ≥ 1, at most 1024 on CUDA, clamped to each sequence's length.
        window: W ≥ 0, neighbours on each side.
        dropout: dropout probability of the weights; a cluster's members share the mask of its far keys.

    Returns:
        [B, H, N, E]; zeros at padding.
    """
    seed, keep = dropout_seed(q_BHND, dropout), needs_gradient(q_BHND, k_BHND, v_BHNE)
    return OPERATOR(
        q_BHND, k_BHND, v_BHNE, groups_BHN, lengths_B, clusters, topk, window, dropout, seed, keep
    )


def kept_size(x: Tensor, keep_weights: bool, window: int, N: int) -> int:
    """Return the numbers kept per head, as `near_kept` in cpu/kernels.h counts them.

    Args:
        x: any tensor on the operator's device; the CUDA kernels keep nothing.
        keep_weights: whether to keep scores at all.
        window, N: neighbours on each side, positions.
    """
    if not keep_weights or x.device.type != "cpu":
        return 0
    window = min(window, N)
    block = max(256, 2 * window)
    keys = 16 + 2 * window
    return 0 if keys > 256 else (N + block - 1) // block * ((block + 15) // 16) * keys * 16


def _outputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    groups: Tensor,
    lengths: Tensor,
    clusters: int,
    topk: int,
    window: int,
    dropout: float,
    seed: Tensor | None,
    keep_weights: bool = False,
) -> tuple[Tensor, ...]:
    B, H, N, _ = q.shape
    C, K, sums = min(clusters, N), min(topk, N), compute_dtype(q)
    return (
        q.new_empty(B, H, N, v.shape[3]),
        q.new_empty(B, H, 2, N, dtype=sums),
        q.new_empty(B, H, 2, C, dtype=sums),
        q.new_empty(B, H, C, K, dtype=torch.int32),
        q.new_empty(B, H, kept_size(q, keep_weights, window, N), dtype=sums),
    )


def _backward_arguments(inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> tuple[Any, ...]:
    *tensors, clusters, _, window, dropout, seed, _ = inputs
    return (*tensors, clusters, window, dropout, seed, *output)


OPERATOR = DifferentiableOperator("near_attention", _outputs, _backward_arguments)
