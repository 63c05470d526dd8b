"""Clustered attention: one row of weights per cluster of queries."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from asr.attention.backend import Operators, why_no_kernels
from asr.attention.hashing import LARGEST_HEAD, fixed_normal, slice_head
from asr.attention.softmax import SoftmaxMechanism, both_lengths, filled_lengths
from attention_ext.clustered_attention.reference import clustered_weights


class QueryClusters(nn.Module):
    """Clusters of queries: sign hashes, then K-means in Hamming space.

    *Fast Transformers with Clustered Attention* §3.2.2. The hash planes are a buffer saved with the model, so
    that queries are clustered alike in training, in evaluation and on any machine.

    Args:
        clusters: C.
        bits: hash bits, 1 … 63.
        iterations: iterations of Lloyd's algorithm, L.
    """

    planes_PD: Tensor

    def __init__(self, clusters: int, bits: int, iterations: int) -> None:
        super().__init__()
        self.clusters, self.bits, self.iterations = clusters, bits, iterations
        self.register_buffer("planes_PD", fixed_normal(bits, LARGEST_HEAD))

    def forward(self, q_BHND: Tensor, lengths_B: Tensor, operators: Operators) -> Tensor:
        """Return the cluster of every query, [B, H, N] int32; −1 at padding. Backends agree bit for bit."""
        planes_PD = slice_head(self.planes_PD, q_BHND.shape[-1], axis=1)
        hashes_BHN = operators.hash_sign(q_BHND.detach(), planes_PD)
        return operators.hamming_kmeans(hashes_BHN, lengths_B, self.clusters, self.iterations, self.bits)


class ClusteredAttention(SoftmaxMechanism):
    """The centroid of each query cluster attends, and the members share the result.

    *Fast Transformers with Clustered Attention* eq. 3–6; see `attention_ext.clustered_attention`.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        clusters: C, clamped to each sequence's length.
        bits: hash bits.
        iterations: iterations of K-means, L.
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
        options = {"clusters": self.grouping.clusters, "dropout": self.active_dropout}
        return self.operator(operators)(q, k, v, groups_BHN, query_lengths, key_lengths, **options)

    def operator(self, operators: Operators) -> Callable[..., Tensor]:
        """Return the operator that computes attention from clusters."""
        return operators.clustered_attention

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
