"""Improved clustered attention: exact weights on the best keys of each cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from asr.attention.backend import Operators
from asr.attention.clustered import ClusteredAttention
from asr.attention.grouping import GroupingOptions
from asr.attention.spec import number_of_keys
from attention_ext.improved_clustered_attention.reference import improved_clustered_weights


@dataclass
class ImprovedOptions(GroupingOptions):
    """Clusters, and the keys with exact weights; K is clamped to each sequence's key length."""

    topk: int = number_of_keys()


class ImprovedClusteredAttention(ClusteredAttention):
    """Clustered attention that recomputes the weights on a cluster's K best keys for each query.

    *Fast Transformers with Clustered Attention* eq. 9–11; see
    `attention_ext.improved_clustered_attention`. In the L1 norm, no row of weights is further from full
    attention than with `clustered` and the same clusters (Proposition 2).

    Args:
        name, backend, dropout, options: see `ClusteredAttention`.
    """

    options = ImprovedOptions
    time = memory = "N·(C + topk)"

    def __init__(self, name: str, backend: str, dropout: float, options: ImprovedOptions) -> None:
        super().__init__(name, backend, dropout, options, keys=options.topk)
        self.topk = options.topk

    def operator(self, operators: Operators) -> Callable[..., Tensor]:
        """Return the operator that computes attention from clusters."""
        return partial(operators.improved_clustered_attention, topk=self.topk)

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """See `QueryKeyMechanism`."""
        groups_BHN = self.clusters(q, query_lengths, k, key_lengths)
        clusters = self.grouping.clusters
        return improved_clustered_weights(q, k, groups_BHN, query_lengths, key_lengths, clusters, self.topk)
