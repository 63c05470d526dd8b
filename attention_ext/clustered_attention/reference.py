"""Clustered attention in plain PyTorch, the oracle of the compiled kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
    """Attend once per cluster of queries; every member takes its cluster's row.

    *Fast Transformers with Clustered Attention* eq. 3–6. Logits, softmax and sums are taken in float32
    (float64 for float64). Memory grows with C·(N + S). What padded positions hold is never read.

    Args:
        q_BHND, k_BHSD, v_BHSE: queries, keys and values.
        groups_BHN: cluster of each query, 0 … min(C, N) − 1; −1 at padding.
        query_lengths_B, key_lengths_B: valid positions, 0 … N and 0 … S.
        clusters: C.
        dropout: probability on the C × S weights, so that the members of a cluster share a mask.

    Returns:
        [B, H, N, E] of v's type; zeros at padded queries, and everywhere where no key is valid.
    """
    members_BHNC = membership(groups_BHN, query_lengths_B, clusters, compute_dtype(q_BHND))
    scores_BHCS = centroid_scores(q_BHND, k_BHSD, members_BHNC, query_lengths_B, key_lengths_B)
    weights_BHCS = F.dropout(masked_softmax(scores_BHCS, key_lengths_B), dropout)
    values_BHCE = weights_BHCS @ zero_padding(v_BHSE, key_lengths_B).to(weights_BHCS.dtype)
    return (members_BHNC @ values_BHCE).to(v_BHSE.dtype)


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


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which sums are taken: float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def zero_padding(x_BHND: Tensor, lengths_B: Tensor) -> Tensor:
    """Zero the rows behind each length by selection, so that NaN in them reaches neither pass."""
    keep_BN = torch.arange(x_BHND.shape[2], device=x_BHND.device) < lengths_B.unsqueeze(-1)
    return x_BHND.masked_fill(~keep_BN[:, None, :, None], 0.0)


def membership(groups_BHN: Tensor, query_lengths_B: Tensor, clusters: int, dtype: torch.dtype) -> Tensor:
    """Return S of eq. 3, [B, H, N, min(C, N)]: 1 where query i belongs to cluster j, rows of 0 at padding.

    A matrix and not an index: its products add in a fixed order on every device.
    """
    N = groups_BHN.shape[-1]
    cluster_C = torch.arange(min(clusters, N), device=groups_BHN.device, dtype=groups_BHN.dtype)
    return zero_padding((groups_BHN.unsqueeze(-1) == cluster_C).to(dtype), query_lengths_B)


def centroid_scores(
    q_BHND: Tensor, k_BHSD: Tensor, members_BHNC: Tensor, query_lengths_B: Tensor, key_lengths_B: Tensor
) -> Tensor:
    """Return the logits of eq. 4, [B, H, C, S]: mean query of each cluster times keys, over √D.

    An empty cluster's mean is zero; nobody reads its row.
    """
    q_BHND = zero_padding(q_BHND, query_lengths_B).to(members_BHNC.dtype)
    k_BHSD = zero_padding(k_BHSD, key_lengths_B).to(members_BHNC.dtype)
    counts_BHC = members_BHNC.sum(2).clamp(min=1.0)
    centroids_BHCD = (members_BHNC.mT @ q_BHND) / counts_BHC.unsqueeze(-1)
    return (centroids_BHCD * q_BHND.shape[-1] ** -0.5) @ k_BHSD.mT


def masked_softmax(scores_BHNS: Tensor, key_lengths_B: Tensor) -> Tensor:
    """Return the softmax over valid keys, [B, H, N, S]; zeros at padded keys, all zeros without any key."""
    keep_BS = torch.arange(scores_BHNS.shape[-1], device=scores_BHNS.device) < key_lengths_B.unsqueeze(-1)
    padding_B11S = ~keep_BS[:, None, None, :]
    # A finite fill: the softmax of a row of −inf would be NaN, in the backward pass too.
    lowest = torch.finfo(scores_BHNS.dtype).min
    return scores_BHNS.masked_fill(padding_B11S, lowest).softmax(-1).masked_fill(padding_B11S, 0.0)
