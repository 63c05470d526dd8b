"""Clustered attention on the compiled kernels, with its derivative."""

from typing import Any

from torch import Tensor

from attention_ext.autograd import DifferentiableOperator, needs_gradient
from attention_ext.clusters.kept import kept_size
from attention_ext.library import on_tiles
from attention_ext.tensors import compute_dtype, dropout_seed


def clustered_attention(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    groups_BHN: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
    dropout: float = 0.0,
) -> Tensor:
    """Attend once per cluster of queries; equals `reference.clustered_attention`.

    *Fast Transformers with Clustered Attention* eq. 3–6. Sums are accumulated in float32 (float64 for
    float64). With AMX or AVX512_BF16, centroids and weights of bfloat16 input are rounded to bfloat16, and no
    weights are stored; else the CPU stores the C × S weights if a backward pass may follow. CUDA stores them
    for a few heads at a time. Padded positions are never read. CUDA does not support
    float64, and treats a group out of range as padding.

    Args:
        q_BHND, k_BHSD, v_BHSE: queries, keys and values of the same type.
        groups_BHN: int32 cluster of each query, 0 … min(C, N) − 1; anything at padding.
        query_lengths_B, key_lengths_B: valid positions, 0 … N and 0 … S.
        clusters: C, 1 … 1024.
        dropout: dropout probability of the C × S weights; PyTorch's generator seeds each call.

    Returns:
        [B, H, N, E]; zeros at padded queries, and for a sequence without valid keys.
    """
    lengths, seed = (query_lengths_B, key_lengths_B), dropout_seed(q_BHND, dropout)
    keep = needs_gradient(q_BHND, k_BHSD, v_BHSE)
    return OPERATOR(q_BHND, k_BHSD, v_BHSE, groups_BHN, *lengths, clusters, dropout, seed, keep)


def _outputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    groups: Tensor,
    query_lengths: Tensor,
    key_lengths: Tensor,
    clusters: int,
    dropout: float,
    seed: Tensor | None,
    keep_weights: bool = False,
) -> tuple[Tensor, ...]:
    B, H, N, D = q.shape
    C, (S, E) = min(clusters, N), v.shape[2:]
    sums = compute_dtype(q)
    keep = keep_weights and not on_tiles(q, v)
    return (
        q.new_empty(B, H, N, E),
        q.new_empty(B, H, 2, C, dtype=sums),
        q.new_empty(B, H, C, E, dtype=sums),
        q.new_empty(B, H, kept_size(q, keep, N, S, D, C), dtype=sums),
    )


def _backward_arguments(inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> tuple[Any, ...]:
    *tensors, clusters, dropout, seed, _ = inputs
    _, *others = output
    return (*tensors, clusters, dropout, seed, *others)


OPERATOR = DifferentiableOperator("clustered_attention", _outputs, _backward_arguments)
