"""Products with each cluster's top keys for exported graphs, from operators that every runtime supports.

To save memory, the references sort queries into blocks that share a gathered copy of their cluster's top
keys. ONNX lacks stable sort and `searchsorted`, so here each query gathers its own copy: memory grows with
N·K·D. The weights are the same.
"""

from torch import Tensor

from attention_ext.improved_clustered_attention.reference import Products, gather_rows, keys_of_queries


def products_per_query(
    q_BHND: Tensor, k_BHSD: Tensor, top_BHCK: Tensor, groups_BHN: Tensor, members_BHNC: Tensor
) -> Products:
    """Return `Products`, with a copy of the top keys' rows for every query."""
    top_BHNK = keys_of_queries(top_BHCK, groups_BHN)

    def weigh(weights_BHNK: Tensor, v_BHSE: Tensor) -> Tensor:
        return (weights_BHNK.unsqueeze(3) @ gather_rows(v_BHSE, top_BHNK)).squeeze(3)

    return (q_BHND.unsqueeze(3) @ gather_rows(k_BHSD, top_BHNK).mT).squeeze(3), weigh
