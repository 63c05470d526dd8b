"""K-means of queries in the metric of the keys on the compiled kernels."""

import functools

import torch
from torch import Tensor

from attention_ext.library import require


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
    if not torch.compiler.is_compiling():
        require(q_BHND.device.type)
        register()
    lengths = query_lengths_B, key_lengths_B
    return torch.ops.attention_ext.key_groups(q_BHND, k_BHSD, *lengths, clusters, rank, iterations)


@functools.cache
def register() -> None:
    """Register the output's shape with PyTorch."""

    @torch.library.register_fake("attention_ext::key_groups")
    def _(
        q: Tensor,
        k: Tensor,
        query_lengths: Tensor,
        key_lengths: Tensor,
        clusters: int,
        rank: int,
        iterations: int,
    ) -> Tensor:
        return q.new_empty(q.shape[:3], dtype=torch.int32)
