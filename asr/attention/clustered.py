"""Clustered attention: one row of weights per cluster of queries."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from asr.attention.backend import Operators, why_no_kernels
from asr.attention.grouping import GROUPING, GROUPINGS
from asr.attention.hashing import LARGEST_HEAD
from asr.attention.softmax import SoftmaxMechanism, both_lengths, filled_lengths
from asr.attention.spec import COUNT, Option, Schema
from attention_ext.clustered_attention.reference import clustered_weights

CLUSTERS = Option("clusters", 100, COUNT, "query clusters, C")


class ClusteredAttention(SoftmaxMechanism):
    """Queries are grouped into clusters: the centroid of each attends, and the members share the result.

    *Fast Transformers with Clustered Attention* eq. 3–6; see `attention_ext.clustered_attention`.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        clusters: C, clamped to each sequence's length.
        grouping: `hash` or `keys`, see `asr.attention.grouping`.
        keys: number of keys that a subclass chooses for each cluster.
        options: further options of the grouping.
    """

    schema = Schema("C", CLUSTERS, GROUPING)
    source = "[Vyas et al. 2020, Clustered Attention](https://arxiv.org/abs/2007.04825)"
    time = memory = "N·C"
    why_no_kernels = staticmethod(why_no_kernels)

    def __init__(
        self,
        name: str,
        backend: str,
        dropout: float,
        clusters: int,
        grouping: str,
        keys: int = 0,
        **options: Any,
    ) -> None:
        reasons = self.why_no_kernels(clusters, keys)
        super().__init__(name, backend, dropout, why_not_native=reasons)
        self.grouping = GROUPINGS[grouping](clusters, **options)
        self.operators = self.backend.operators()

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """See `QueryKeyMechanism`."""
        query_lengths, key_lengths = both_lengths(query_lengths, key_lengths, q, k)
        operators = self.operators[self.backend_on(q.device.type, q.shape[-1])]
        groups_BHN = self.grouping(q, k, query_lengths, key_lengths, operators)
        operators = self.operators[self.backend.on(q.device.type)]  # which take heads of any size
        options = {"clusters": self.grouping.clusters, "dropout": self.active_dropout}
        return self.operator(operators)(q, k, v, groups_BHN, query_lengths, key_lengths, **options)

    def backend_on(self, device_type: str, head_dim: int) -> str:
        """See `QueryKeyMechanism`."""
        unfit = self.grouping.needs_keys and head_dim > LARGEST_HEAD
        reason = f"the compiled kernels group heads of at most {LARGEST_HEAD} by keys, found {head_dim}"
        return self.backend.on(device_type, reason if unfit else None)

    def operator(self, operators: Operators) -> Callable[..., Tensor]:
        """Return the operator that computes attention from clusters."""
        return operators.clustered_attention

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """See `QueryKeyMechanism`."""
        groups_BHN = self.clusters(q, query_lengths, k, key_lengths)
        return clustered_weights(q, k, groups_BHN, query_lengths, key_lengths, self.grouping.clusters)

    @torch.no_grad()
    def clusters(
        self,
        q: Tensor,
        lengths: Tensor | None = None,
        k: Tensor | None = None,
        key_lengths: Tensor | None = None,
    ) -> Tensor:
        """Return the cluster of every query.

        Args:
            q: [B, H, N, D].
            lengths: [B] valid queries; None means all.
            k: [B, H, S, D], which only `grouping=keys` reads.
            key_lengths: [B] valid keys; None means `lengths` if N = S, else all.

        Returns:
            [B, H, N] int32, 0 … min(C, n) − 1; −1 at padding.

        Raises:
            ValueError: the grouping needs keys.
        """
        lengths = filled_lengths(lengths, q)
        if k is None and self.grouping.needs_keys:
            raise ValueError(
                f"attention {self.name!r} groups queries by keys: expected clusters(q, lengths, k)"
            )
        if k is not None:
            same = key_lengths is None and k.shape[2] == q.shape[2]
            key_lengths = lengths if same else filled_lengths(key_lengths, k)
        operators = self.operators[self.backend_on(q.device.type, q.shape[-1])]
        return self.grouping(q, k, lengths, key_lengths, operators)
