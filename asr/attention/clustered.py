"""Clustered attention: one row of weights per cluster of queries."""

import torch
from torch import Tensor

from asr.attention.backend import why_no_kernels
from asr.attention.clustering import QueryClusters
from asr.attention.softmax import SoftmaxMechanism, both_lengths, filled_lengths
from attention_ext.clustered_attention.reference import clustered_weights


class ClusteredAttention(SoftmaxMechanism):
    """Centroids of query clusters attend; members share the result.

    *Fast Transformers with Clustered Attention* eq. 3–6; see `attention_ext.clustered_attention`.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        clusters: C, clamped to each sequence's length.
        bits: hash bits.
        iterations: L of K-means.
    """

    def __init__(
        self, name: str, backend: str, dropout: float, clusters: int, bits: int, iterations: int
    ) -> None:
        super().__init__(name, backend, dropout, why_not_native=why_no_kernels(clusters, backend))
        self.grouping = QueryClusters(clusters, bits, iterations)
        self.operators = self.backend.operators()

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """Compute `forward`."""
        query_lengths, key_lengths = both_lengths(query_lengths, key_lengths, q, k)
        operators = self.operators[self.backend.on(q.device.type)]
        groups_BHN = self.grouping(q, query_lengths, operators)
        return operators.clustered_attention(
            q,
            k,
            v,
            groups_BHN,
            query_lengths,
            key_lengths,
            clusters=self.grouping.clusters,
            dropout=self.active_dropout,
        )

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """Compute `weights`."""
        groups_BHN = self.clusters(q, query_lengths)
        return clustered_weights(q, k, groups_BHN, query_lengths, key_lengths, self.grouping.clusters)

    @torch.no_grad()
    def clusters(self, q: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the cluster of every query.

        Args:
            q: [B, H, N, D].
            lengths: [B] valid queries; None means all.

        Returns:
            [B, H, N] int32, 0 … min(C, n) − 1; −1 at padding.
        """
        operators = self.operators[self.backend.on(q.device.type)]
        return self.grouping(q, filled_lengths(lengths, q), operators)
