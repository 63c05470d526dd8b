"""Near-field attention: exact weights near each query, its cluster's weights far from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from asr.attention.backend import DEVICES, Operators, why_no_kernels
from asr.attention.clustered import ClusteredAttention
from asr.attention.grouping import GroupingOptions, grouping_kind
from asr.attention.spec import COUNT, number_of_keys
from asr.config import option
from attention_ext.library import lacks
from attention_ext.near_attention.reference import near_weights


@dataclass
class NearOptions(GroupingOptions):
    """Clusters, and the keys with exact weights; K is clamped to each sequence's key length."""

    topk: int = number_of_keys()
    window: int = option(
        16, help="neighbours on each side with exact weights, W", affects="result", maximum=COUNT
    )
    # On queries and keys of a published recogniser, this is closer to full attention than hashes.
    grouping: str = grouping_kind("keys")


class NearFieldAttention(ClusteredAttention):
    """One softmax over a query's exact logits on near and top keys, and its cluster's logits on other keys.

    For query i of cluster j, let s_il = q_i·k_l/√D, and s^c_jl be the logit of the cluster's mean query. The
    near keys are T_i = {K keys with the highest s^c_j} ∪ {l : |l − i| ≤ W}, and

        A_il = exp(s_il) / Z_i for l in T_i, else exp(s^c_jl) / Z_i,
        Z_i = Σ_T_i exp(s_il) + Σ_∉T_i exp(s^c_jl).

    `i-clustered` gives the top keys the mass that they have for the centroid (eq. 9 and 10 of *Fast
    Transformers with Clustered Attention*), which is too little for a query whose neighbours matter most.
    Here the query's logits decide, and its neighbours are always among the exact keys. The result is exact if
    clusters have one member or T_i contains all keys. Fast multipole methods call the two parts near field
    and far field, hence the name.

    Args:
        name, backend, dropout, options: see `ClusteredAttention`.
    """

    options = NearOptions
    source = "this project, after [Vyas et al. 2020](https://arxiv.org/abs/2007.04825)"
    time, memory = "N·(C + topk + window)", "N·(C + topk + window) (native: N)"
    cross_attention = False  # distances are between positions of one sequence

    def __init__(self, name: str, backend: str, dropout: float, options: NearOptions) -> None:
        super().__init__(name, backend, dropout, options, keys=options.topk)
        self.topk, self.window = options.topk, options.window

    @staticmethod
    def why_no_kernels(clusters: int, keys: int = 0) -> dict[str, str | None]:
        """See `asr.attention.backend.why_no_kernels`."""
        if lacks("near_attention"):
            reason = "the kernels were built before this mechanism: install the package again"
            return dict.fromkeys(DEVICES, reason)
        return why_no_kernels(clusters, keys)

    def operator(self, operators: Operators) -> Callable[..., Tensor]:
        """Return the operator that computes attention from clusters."""

        def attend(
            q: Tensor, k: Tensor, v: Tensor, groups: Tensor, lengths: Tensor, _: Tensor, **options: Any
        ) -> Tensor:
            near = {"topk": self.topk, "window": self.window}
            return operators.near_attention(q, k, v, groups, lengths, **near, **options)

        return attend

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """Compute `weights`."""
        groups_BHN = self.clusters(q, query_lengths, k, key_lengths)
        return near_weights(q, k, groups_BHN, query_lengths, self.grouping.clusters, self.topk, self.window)
