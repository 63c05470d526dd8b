"""Improved clustered attention for exported graphs, from operators that every runtime supports.

To save memory, the reference sorts queries into blocks that share a gathered copy of their cluster's top
keys. ONNX lacks stable sort and `searchsorted`, so here each query gathers its own copy. The weights are the
same.
"""

import torch.nn.functional as F
from torch import Tensor

from attention_ext.clusters.reference import centroid_scores, membership
from attention_ext.gated_bias import LogitBias
from attention_ext.improved_clustered_attention.reference import gather_rows, keys_of_queries, split_weights
from attention_ext.tensors import compute_dtype, masked_softmax, zero_padding


def improved_clustered_attention(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    groups_BHN: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
    topk: int,
    dropout: float = 0.0,
    bias: LogitBias | None = None,
) -> Tensor:
    """Equals `reference.improved_clustered_attention`; memory grows with C·(N + S) + N·K·D."""
    dtype, out_dtype = compute_dtype(q_BHND), v_BHSE.dtype
    q_BHND = zero_padding(q_BHND, query_lengths_B).to(dtype)
    k_BHSD, v_BHSE = (zero_padding(x, key_lengths_B).to(dtype) for x in (k_BHSD, v_BHSE))
    members_BHNC = membership(groups_BHN, query_lengths_B, clusters, dtype)
    scores_BHCS = centroid_scores(q_BHND, k_BHSD, members_BHNC, query_lengths_B, key_lengths_B, bias)
    rest_BHCS, mass_BHC, top_BHCK = split_weights(scores_BHCS, key_lengths_B, topk)

    group_BHN = groups_BHN.clamp(min=0).long()
    top_BHNK = keys_of_queries(top_BHCK, groups_BHN)
    query_BHN1D = (q_BHND * q_BHND.shape[-1] ** -0.5).unsqueeze(3)
    scores_BHNK = (query_BHN1D @ gather_rows(k_BHSD, top_BHNK).mT).squeeze(3)
    if bias is not None:
        scores_BHNK = scores_BHNK + bias.of_keys(top_BHNK)
    exact_BHNK = mass_BHC.gather(2, group_BHN).unsqueeze(-1) * masked_softmax(scores_BHNK, key_lengths_B)
    own_BHNE = (F.dropout(exact_BHNK, dropout).unsqueeze(3) @ gather_rows(v_BHSE, top_BHNK)).squeeze(3)
    out_BHNE = own_BHNE + members_BHNC @ (F.dropout(rest_BHCS, dropout) @ v_BHSE)
    return zero_padding(out_BHNE, query_lengths_B).to(out_dtype)
