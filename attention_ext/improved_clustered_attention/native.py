"""Improved clustered attention on the compiled kernels, with its derivative."""

from typing import Any

import torch
from torch import Tensor

from attention_ext.autograd import DifferentiableOperator, needs_gradient
from attention_ext.clusters.kept import kept_size
from attention_ext.tensors import compute_dtype, dropout_seed


def improved_clustered_attention(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    groups_BHN: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
    topk: int,
    dropout: float = 0.0,
) -> Tensor:
    """Clustered attention made exact on each cluster's top K keys; equals the reference.

    *Fast Transformers with Clustered Attention* eq. 9–11 and 15–17. The gradients are exact, with groups and
    top keys held constant. Sums are accumulated in float32 (float64 for float64).

    Args:
        q_BHND, k_BHSD, v_BHSE: queries, keys and values of the same type.
        groups_BHN: int32 cluster of each query, 0 … min(C, N) − 1; anything at padding.
        query_lengths_B, key_lengths_B: valid positions, 0 … N and 0 … S.
        clusters: C, 1 … 1024.
        topk: K ≥ 1, at most 1024 on CUDA, clamped to each sequence's key length.
        dropout: dropout probability of the weights of both parts; the top keys' mass is taken before.

    Returns:
        [B, H, N, E]; zeros at padded queries, and for a sequence without valid keys.
    """
    lengths, seed = (query_lengths_B, key_lengths_B), dropout_seed(q_BHND, dropout)
    keep = needs_gradient(q_BHND, k_BHSD, v_BHSE)
    return OPERATOR(q_BHND, k_BHSD, v_BHSE, groups_BHN, *lengths, clusters, topk, dropout, seed, keep)


def _outputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    groups: Tensor,
    query_lengths: Tensor,
    key_lengths: Tensor,
    clusters: int,
    topk: int,
    dropout: float,
    seed: Tensor | None,
    keep_weights: bool = False,
) -> tuple[Tensor, ...]:
    B, H, N, D = q.shape
    C, S, E = min(clusters, N), *v.shape[2:]
    K = min(topk, S)
    sums = compute_dtype(q)
    return (
        q.new_empty(B, H, N, E),
        q.new_empty(B, H, 2, C, dtype=sums),
        q.new_empty(B, H, C, E, dtype=sums),
        q.new_empty(B, H, C, dtype=sums),
        q.new_empty(B, H, C, K, dtype=torch.int32),
        q.new_empty(B, H, kept_size(q, keep_weights, N, S, D, C, K), dtype=sums),
    )


def _backward_arguments(inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> tuple[Any, ...]:
    *tensors, clusters, _, dropout, seed, _ = inputs
    out, *others = output
    return (*tensors, clusters, dropout, seed, *others, out)


OPERATOR = DifferentiableOperator("improved_clustered_attention", _outputs, _backward_arguments)
