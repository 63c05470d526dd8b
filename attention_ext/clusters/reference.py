"""Cluster membership and centroid logits in plain PyTorch."""

import torch
from torch import Tensor

from attention_ext.gated_bias import LogitBias
from attention_ext.tensors import zero_padding


def membership(groups_BHN: Tensor, query_lengths_B: Tensor, clusters: int, dtype: torch.dtype) -> Tensor:
    """Return S of eq. 3, [B, H, N, min(C, N)]: 1 where query i belongs to cluster j, rows of 0 at padding.

    A matrix rather than an index, because matrix products sum in a fixed order on every device.
    """
    N = groups_BHN.shape[-1]
    cluster_C = torch.arange(min(clusters, N), device=groups_BHN.device, dtype=groups_BHN.dtype)
    return zero_padding((groups_BHN.unsqueeze(-1) == cluster_C).to(dtype), query_lengths_B)


def centroid_scores(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    members_BHNC: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    bias: LogitBias | None = None,
) -> Tensor:
    """Return the logits of eq. 4, [B, H, C, S]: mean query of each cluster times keys, over √D.

    They are the means of the queries' logits, with a bias too. The mean of an empty cluster is zero; no query
    uses its row.
    """
    q_BHND = zero_padding(q_BHND, query_lengths_B).to(members_BHNC.dtype)
    k_BHSD = zero_padding(k_BHSD, key_lengths_B).to(members_BHNC.dtype)
    counts_BHC = members_BHNC.sum(2).clamp(min=1.0)
    centroids_BHCD = (members_BHNC.mT @ q_BHND) / counts_BHC.unsqueeze(-1)
    scores_BHCS = (centroids_BHCD * q_BHND.shape[-1] ** -0.5) @ k_BHSD.mT
    return scores_BHCS if bias is None else scores_BHCS + bias.cluster_means(members_BHNC)
