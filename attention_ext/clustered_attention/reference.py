"""Clustered attention in plain PyTorch, the oracle for the compiled kernels."""

import torch.nn.functional as F
from torch import Tensor

from attention_ext.clusters.reference import centroid_scores, membership
from attention_ext.gated_bias import LogitBias
from attention_ext.tensors import compute_dtype, masked_softmax, zero_padding


def clustered_attention(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    groups_BHN: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
    dropout: float = 0.0,
    bias: LogitBias | None = None,
) -> Tensor:
    """Attend once per cluster of queries; every member gets its cluster's output.

    *Fast Transformers with Clustered Attention* eq. 3–6. Logits, softmax and sums are computed in float32
    (float64 for float64). Memory grows with C·(N + S). Padded positions are never read.

    Args:
        q_BHND, k_BHSD, v_BHSE: queries, keys and values.
        groups_BHN: cluster of each query, 0 … min(C, N) − 1; −1 at padding.
        query_lengths_B, key_lengths_B: valid positions, 0 … N and 0 … S.
        clusters: C.
        dropout: dropout probability of the C × S weights; the members of a cluster share a mask.
        bias: term of the logits; self-attention only.

    Returns:
        [B, H, N, E] of v's type; zeros at padded queries, and for a sequence without valid keys.
    """
    members_BHNC = membership(groups_BHN, query_lengths_B, clusters, compute_dtype(q_BHND))
    scores_BHCS = centroid_scores(q_BHND, k_BHSD, members_BHNC, query_lengths_B, key_lengths_B, bias)
    weights_BHCS = F.dropout(masked_softmax(scores_BHCS, key_lengths_B), dropout)
    values_BHCE = weights_BHCS @ zero_padding(v_BHSE, key_lengths_B).to(weights_BHCS.dtype)
    return zero_padding(members_BHNC @ values_BHCE, query_lengths_B).to(v_BHSE.dtype)


def clustered_weights(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    groups_BHN: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
) -> Tensor:
    """Return the dense [B, H, N, S] weights W that `clustered_attention` implies: output = W @ v."""
    members_BHNC = membership(groups_BHN, query_lengths_B, clusters, compute_dtype(q_BHND))
    scores_BHCS = centroid_scores(q_BHND, k_BHSD, members_BHNC, query_lengths_B, key_lengths_B)
    return members_BHNC @ masked_softmax(scores_BHCS, key_lengths_B)
