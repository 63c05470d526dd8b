"""Improved clustered attention: exact weights on the best keys of each cluster."""

from torch import Tensor

from asr.attention.clustered import ClusteredAttention
from asr.attention.softmax import both_lengths
from attention_ext.improved_clustered_attention.reference import improved_clustered_weights


class ImprovedClusteredAttention(ClusteredAttention):
    """Clustered attention that recomputes the weights on a cluster's K best keys for each query.

    *Fast Transformers with Clustered Attention* eq. 9–11; see
    `attention_ext.improved_clustered_attention`. No row of weights is further from full attention in the L1
    norm than that of `clustered` with the same clusters (Proposition 2).

    Args:
        name, backend, dropout, clusters, bits, iterations: see `ClusteredAttention`.
        topk: K, clamped to each sequence's key length.
    """

    def __init__(
        self, name: str, backend: str, dropout: float, clusters: int, topk: int, bits: int, iterations: int
    ) -> None:
        super().__init__(name, backend, dropout, clusters, bits, iterations)
        self.topk = topk

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """Compute `forward`."""
        query_lengths, key_lengths = both_lengths(query_lengths, key_lengths, q, k)
        operators = self.operators[self.backend.on(q.device.type)]
        groups_BHN = self.grouping(q, query_lengths, operators)
        return operators.improved_clustered_attention(
            q,
            k,
            v,
            groups_BHN,
            query_lengths,
            key_lengths,
            clusters=self.grouping.clusters,
            topk=self.topk,
            dropout=self.active_dropout,
        )

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """Compute `weights`."""
        return improved_clustered_weights(
            q,
            k,
            self.clusters(q, query_lengths),
            query_lengths,
            key_lengths,
            self.grouping.clusters,
            self.topk,
        )
