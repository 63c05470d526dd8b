"""Near-field attention for exported graphs, from operators that every runtime supports.

As in improved clustered attention, each query gathers its own copy of its cluster's top keys, because ONNX
cannot sort queries into blocks.
"""

from torch import Tensor

from attention_ext.gated_bias import LogitBias
from attention_ext.improved_clustered_attention.reference import gather_rows, keys_of_queries
from attention_ext.near_attention.reference import Products, mixed_attention


def near_attention(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHNE: Tensor,
    groups_BHN: Tensor,
    lengths_B: Tensor,
    clusters: int,
    topk: int,
    window: int,
    dropout: float = 0.0,
    bias: LogitBias | None = None,
) -> Tensor:
    """Equals `reference.near_attention`.

    Memory grows with N·(C + 3·max(W, 64) + K·D) and, in a graph with dynamic N, C·(N / 64)².
    """
    arguments = q_BHND, k_BHND, v_BHNE, groups_BHN, lengths_B, clusters, topk, window, dropout, bias
    return mixed_attention(*arguments, products_per_query)


def products_per_query(
    q_BHND: Tensor, k_BHND: Tensor, top_BHCK: Tensor, groups_BHN: Tensor, members_BHNC: Tensor
) -> Products:
    """Return `Products`, with a copy of the top keys' rows for every query."""
    top_BHNK = keys_of_queries(top_BHCK, groups_BHN)

    def weigh(weights_BHNK: Tensor, v_BHNE: Tensor) -> Tensor:
        return (weights_BHNK.unsqueeze(3) @ gather_rows(v_BHNE, top_BHNK)).squeeze(3)

    return (q_BHND.unsqueeze(3) @ gather_rows(k_BHND, top_BHNK).mT).squeeze(3), weigh
