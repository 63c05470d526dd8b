"""Clustered attention: one row of weights per cluster of queries."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from asr.attention.backend import Operators, why_no_heads, why_no_kernels, why_no_type
from asr.attention.grouping import GROUPINGS, GroupingOptions
from asr.attention.hashing import LARGEST_HEAD
from asr.attention.softmax import SoftmaxMechanism, both_lengths, filled_lengths, with_bias
from attention_ext.clustered_attention.reference import clustered_weights


class ClusteredAttention(SoftmaxMechanism):
    """Queries are grouped into clusters; each cluster's centroid attends, and its members share the result.

    *Fast Transformers with Clustered Attention* eq. 3–6; see `attention_ext.clustered_attention`.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        options: clusters and their grouping; C is clamped to each sequence's length.
        keys: number of keys that a subclass chooses for each cluster.
    """

    options: ClassVar[type[GroupingOptions]] = GroupingOptions
    source = "[Vyas et al. 2020, Clustered Attention](https://arxiv.org/abs/2007.04825)"
    time = memory = "N·C"
    why_no_kernels = staticmethod(why_no_kernels)

    def __init__(
        self, name: str, backend: str, dropout: float, options: GroupingOptions, keys: int = 0
    ) -> None:
        reasons = self.why_no_kernels(options.clusters, keys)
        super().__init__(name, backend, dropout, why_not_native=reasons)
        self.grouping = GROUPINGS[options.grouping](options)
        self.operators = self.backend.operators()

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """See `QueryKeyMechanism`."""
        query_lengths, key_lengths = both_lengths(query_lengths, key_lengths, q, k)
        groups_BHN = self.grouping(q, k, query_lengths, key_lengths, self._grouping_operators(q))
        return self._attend_grouped(q, k, v, groups_BHN, query_lengths, key_lengths)

    def attend_biased(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_lengths: Tensor | None,
        key_lengths: Tensor | None,
        bias_BS: Tensor,
        finite_padding: bool,
    ) -> Tensor:
        """See `QueryKeyMechanism`; the grouping ignores the addend, which is the same for all queries."""
        query_lengths, key_lengths = both_lengths(query_lengths, key_lengths, q, k)
        groups_BHN = self.grouping(q, k, query_lengths, key_lengths, self._grouping_operators(q))
        return self._attend_grouped(*with_bias(q, k, bias_BS), v, groups_BHN, query_lengths, key_lengths)

    def _attend_grouped(
        self, q: Tensor, k: Tensor, v: Tensor, groups_BHN: Tensor, query_lengths: Tensor, key_lengths: Tensor
    ) -> Tensor:
        unfit = why_no_heads(q.device.type, max(q.shape[-1], v.shape[-1]), q.dtype)
        operators = self.operators[self.backend.on(q.device.type, unfit)]
        options = {"clusters": self.grouping.clusters, "dropout": self.active_dropout}
        return self.operator(operators)(q, k, v, groups_BHN, query_lengths, key_lengths, **options)

    def backend_on(self, device_type: str, head_dim: int, dtype: torch.dtype = torch.float32) -> str:
        """See `QueryKeyMechanism`; `native` if both grouping and attention are."""
        unfit = self._why_no_groups(device_type, head_dim, dtype)
        return self.backend.on(device_type, unfit or why_no_heads(device_type, head_dim, dtype))

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
            k: [B, H, S, D], used by `grouping=keys` only.
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
        return self.grouping(q, k, lengths, key_lengths, self._grouping_operators(q))

    def _grouping_operators(self, q: Tensor) -> Operators:
        """Return the operators that group queries."""
        unfit = self._why_no_groups(q.device.type, q.shape[-1], q.dtype)
        return self.operators[self.backend.on(q.device.type, unfit)]

    def _why_no_groups(self, device_type: str, head_dim: int, dtype: torch.dtype) -> str | None:
        """Return the reason why the compiled kernels can't group queries; None if they can."""
        if self.grouping.needs_keys and head_dim > LARGEST_HEAD:
            return f"the compiled kernels group heads of at most {LARGEST_HEAD} by keys, found {head_dim}"
        return why_no_type(device_type, dtype)
