"""Softmax mechanisms with a relative position bias in their logits, in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.attention.clustered import ClusteredAttention
from asr.attention.full import FullAttention
from asr.attention.local import LocalAttention
from asr.attention.oracle_top import OracleTopAttention
from asr.attention.softmax import SoftmaxMechanism, with_bias
from attention_ext.gated_bias import LogitBias
from attention_ext.improved_clustered_attention.reference import top_keys
from attention_ext.local_attention.reference import within
from attention_ext.tensors import compute_dtype, zero_padding

CHUNK = 256  # queries whose weights are in memory at the same time


def biased_attention(
    mechanism: SoftmaxMechanism,
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHNE: Tensor,
    bias: LogitBias,
    lengths_B: Tensor,
    bias_BN: Tensor | None = None,
) -> Tensor:
    """Attend with biased logits.

    A cluster's logits are the mean of its queries' biased logits; the grouping ignores the bias. The best
    keys of `oracle-top` and `i-clustered` are those with the highest biased logits.

    Args:
        mechanism: `full`, `oracle-top`, `local`, `clustered` or `i-clustered`.
        q_BHND, k_BHND, v_BHNE: queries, keys and values.
        bias: relative position bias.
        lengths_B: valid positions.
        bias_BN: further addend of the logits of each key.

    Returns:
        [B, H, N, E] in v's dtype, zero at padding. Logits and sums are float32 (float64 for float64).
    """
    if v_BHNE.numel() == 0:
        return v_BHNE
    dtype, out_dtype = compute_dtype(q_BHND), v_BHNE.dtype
    bias = bias.padded(lengths_B, dtype)
    if isinstance(mechanism, ClusteredAttention):
        groups_BHN = mechanism.clusters(q_BHND, lengths_B, k_BHND)
        q_BHND, k_BHND = (q_BHND, k_BHND) if bias_BN is None else with_bias(q_BHND, k_BHND, bias_BN)
        options = {"clusters": mechanism.grouping.clusters, "dropout": mechanism.active_dropout}
        attend = mechanism.operator(mechanism.operators["reference"])
        return attend(q_BHND, k_BHND, v_BHNE, groups_BHN, lengths_B, lengths_B, **options, bias=bias)
    q_BHND, k_BHND = (q_BHND, k_BHND) if bias_BN is None else with_bias(q_BHND, k_BHND, bias_BN)
    q_BHND, k_BHND, v_BHNE = (zero_padding(x, lengths_B).to(dtype) for x in (q_BHND, k_BHND, v_BHNE))
    q_BHND = q_BHND * q_BHND.shape[-1] ** -0.5
    positions_N = torch.arange(q_BHND.shape[2], device=q_BHND.device)
    # In training, the backward pass needs the weights of all queries anyway; and a graph has no loops.
    kept = torch.is_grad_enabled() and not isinstance(mechanism, LocalAttention)
    whole = kept or torch.compiler.is_compiling()
    outs = []
    for queries_I in [positions_N] if whole else positions_N.split(CHUNK):
        keys_J = positions_N
        if isinstance(mechanism, LocalAttention) and not whole:
            keys_J = _keys_in_reach(mechanism, queries_I, positions_N)
        scores_BHIJ = q_BHND[:, :, queries_I] @ k_BHND[:, :, keys_J].mT + bias.between(queries_I, keys_J)
        seen_B11J = (keys_J < lengths_B.unsqueeze(-1))[:, None, None]
        hidden = ~(seen_B11J & _seen(mechanism, scores_BHIJ, queries_I, keys_J, lengths_B))
        # A finite fill: the softmax of a row of −inf would be NaN, in the backward pass too.
        scores_BHIJ = scores_BHIJ.masked_fill(hidden, torch.finfo(scores_BHIJ.dtype).min)
        weights_BHIJ = scores_BHIJ.softmax(-1).masked_fill(hidden, 0.0)
        outs.append(F.dropout(weights_BHIJ, mechanism.active_dropout) @ v_BHNE[:, :, keys_J])
    return zero_padding(torch.cat(outs, dim=2), lengths_B).to(out_dtype)


def _keys_in_reach(mechanism: LocalAttention, queries_I: Tensor, positions_N: Tensor) -> Tensor:
    """Return the positions of all keys that at least one of the consecutive queries sees."""
    start, end = int(queries_I[0]), int(queries_I[-1]) + 1
    if start < mechanism.first:
        return positions_N
    margin = mechanism.chunk - 1  # for a chunk that begins before or ends after the queries
    begin, end = start - margin - mechanism.window, end + margin + mechanism.right
    near = positions_N[max(begin, mechanism.first) : end]
    return torch.cat((positions_N[: mechanism.first], near))


def _seen(
    mechanism: SoftmaxMechanism, scores_BHIJ: Tensor, queries_I: Tensor, keys_J: Tensor, lengths_B: Tensor
) -> Tensor:
    """Return which keys each query sees, ignoring padding: bool, broadcastable to [B, H, I, J]."""
    query_I1 = queries_I.unsqueeze(-1)
    match mechanism:
        case OracleTopAttention():
            return top_keys(scores_BHIJ, lengths_B, mechanism.topk)[0]
        case LocalAttention(window=window, right=right, chunk=chunk, first=first):
            near = within(query_I1, keys_J, window, right, chunk)
            return near | (keys_J < first) | (query_I1 < first)
        case FullAttention(causal=True):
            return keys_J <= query_I1
    return torch.ones_like(query_I1, dtype=torch.bool)
