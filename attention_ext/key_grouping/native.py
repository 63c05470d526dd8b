"""K-means of queries in the metric of the keys on the compiled kernels."""

import torch
from torch import Tensor

from attention_ext.autograd import Operator


def key_groups(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
    rank: int,
    iterations: int,
) -> Tensor:
    """Group queries by Lloyd's algorithm in the metric of the keys; equals `reference.key_groups`.

    Args:
        q_BHND: queries of any floating type, D = 1 … 256.
        k_BHSD: keys of the same type.
        query_lengths_B, key_lengths_B: valid queries and keys of each sequence.
        clusters: C, 1 … 1024.
        rank: columns of the factor of the covariance, 1 … 256; at most D are used.
        iterations: L assignments, 1 … 1,000,000; the CPU stops earlier once no query changes cluster.

    Returns:
        [B, H, N] int32, cluster of each query, 0 … min(C, n) − 1; −1 at padding.
    """
    lengths = query_lengths_B, key_lengths_B
    return OPERATOR(q_BHND, k_BHSD, *lengths, clusters, rank, iterations)


OPERATOR = Operator("key_groups", lambda q, *_: q.new_empty(q.shape[:3], dtype=torch.int32))
