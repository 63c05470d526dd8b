"""Improved clustered attention: exact weights on the best keys of each cluster."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from asr.attention.backend import Operators
from asr.attention.clustered import CLUSTERS, ClusteredAttention
from asr.attention.grouping import GROUPING
from asr.attention.spec import TOPK, Schema
from attention_ext.improved_clustered_attention.reference import improved_clustered_weights


class ImprovedClusteredAttention(ClusteredAttention):
    """Clustered attention that recomputes the weights on a cluster's K best keys for each query.

    *Fast Transformers with Clustered Attention* eq. 9–11; see
    `attention_ext.improved_clustered_attention`. No row of weights is further from full attention in the L1
    norm than that of `clustered` with the same clusters (Proposition 2).

    Args:
        name, backend, dropout, clusters, grouping, options: see `ClusteredAttention`.
        topk: K, clamped to each sequence's key length.
    """

    schema = Schema("C", CLUSTERS, (TOPK, *GROUPING))
    time = memory = "N·(C + topk)"

    def __init__(
        self, name: str, backend: str, dropout: float, clusters: int, topk: int, grouping: str, **options: Any
    ) -> None:
        super().__init__(name, backend, dropout, clusters, grouping, keys=topk, **options)
        self.topk = topk

    def operator(self, operators: Operators) -> Callable[..., Tensor]:
        """Return the operator that computes attention from clusters."""
        return partial(operators.improved_clustered_attention, topk=self.topk)

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """See `QueryKeyMechanism`."""
        groups_BHN = self.clusters(q, query_lengths, k, key_lengths)
        clusters = self.grouping.clusters
        return improved_clustered_weights(q, k, groups_BHN, query_lengths, key_lengths, clusters, self.topk)
