"""Improved clustered attention in plain PyTorch, the oracle of the compiled kernels."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_ext.clustered_attention.reference import (
    centroid_scores,
    compute_dtype,
    masked_softmax,
    membership,
    zero_padding,
)

LARGEST_BLOCK = 32  # queries that share one gathered copy of their cluster's keys


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
) -> Tensor:
    """Clustered attention whose weights on each cluster's K best keys are redone for every query.

    *Fast Transformers with Clustered Attention* eq. 9–11 and 15–17: with T_j the K keys that cluster j's
    row A^c_j weighs most and m̂_j = Σ_{l∈T_j} A^c_jl, query i of cluster j puts
    m̂_j · softmax_{l∈T_j}(q_i·k_l/√D) on the keys of T_j and A^c_jl on the others. Gradients are those of
    these equations, m̂_j included, with groups and T_j held constant. Memory grows with C·(N + S) + (N + C)·K.

    Args:
        q_BHND, k_BHSD, v_BHSE: queries, keys and values.
        groups_BHN: cluster of each query, 0 … min(C, N) − 1; −1 at padding.
        query_lengths_B, key_lengths_B: valid positions, 0 … N and 0 … S.
        clusters: C.
        topk: K, clamped to each sequence's key length.
        dropout: probability on the weights of both parts, after the mass is taken.

    Returns:
        [B, H, N, E] of v's type; zeros at padded queries, and everywhere where no key is valid.
    """
    weights = _weights(q_BHND, k_BHSD, groups_BHN, query_lengths_B, key_lengths_B, clusters, topk)
    v_BHSE, out_dtype = zero_padding(v_BHSE, key_lengths_B).to(weights.rest_BHCS.dtype), v_BHSE.dtype
    exact_BHMIE = F.dropout(weights.exact_BHMIK, dropout) @ gather_rows(v_BHSE, weights.top_BHMK)
    rest_BHCE = F.dropout(weights.rest_BHCS, dropout) @ v_BHSE
    out_BHNE = _from_blocks(exact_BHMIE, weights.slots_BHN) + weights.members_BHNC @ rest_BHCE
    return zero_padding(out_BHNE, query_lengths_B).to(out_dtype)


def improved_clustered_weights(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    groups_BHN: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
    topk: int,
) -> Tensor:
    """Return the dense [B, H, N, S] weights W that `improved_clustered_attention` implies: output = W @ v."""
    weights = _weights(q_BHND, k_BHSD, groups_BHN, query_lengths_B, key_lengths_B, clusters, topk)
    exact_BHNK = _from_blocks(weights.exact_BHMIK, weights.slots_BHN)
    top_BHNK = _from_blocks(weights.top_BHMK.unsqueeze(3).expand_as(weights.exact_BHMIK), weights.slots_BHN)
    weights_BHNS = (weights.members_BHNC @ weights.rest_BHCS).scatter_add(3, top_BHNK, exact_BHNK)
    return zero_padding(weights_BHNS, query_lengths_B)


def top_keys(scores_BHCS: Tensor, key_lengths_B: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """Choose the K keys with the highest logits of each row; among equals the lowest positions.

    Returns:
        [B, H, C, S] bool, True for the min(K, key length) chosen keys, and their positions
        [B, H, C, min(K, S)] int64 in rising order, 0 in the slots that a short sequence leaves over.
    """
    S = scores_BHCS.shape[-1]
    K = min(topk, S)
    keep_B11S = (torch.arange(S, device=scores_BHCS.device) < key_lengths_B.unsqueeze(-1))[:, None, None, :]
    scores_BHCS = scores_BHCS.detach().masked_fill(~keep_B11S, -torch.inf)
    threshold_BHC1 = scores_BHCS.topk(K, dim=-1).values[..., -1:]
    above_BHCS = scores_BHCS > threshold_BHC1
    level_BHCS = scores_BHCS == threshold_BHC1
    room_BHC1 = K - above_BHCS.sum(-1, keepdim=True)
    chosen_BHCS = (above_BHCS | (level_BHCS & (level_BHCS.cumsum(-1) <= room_BHC1))) & keep_B11S
    # The i-th chosen key writes its position to slot i; all others write to a slot that is cut off.
    slot_BHCS = torch.where(chosen_BHCS, chosen_BHCS.cumsum(-1) - 1, K)
    position_BHCS = torch.arange(S, device=scores_BHCS.device).expand_as(slot_BHCS)
    top_BHCK = slot_BHCS.new_zeros(*slot_BHCS.shape[:-1], K + 1).scatter(-1, slot_BHCS, position_BHCS)
    return chosen_BHCS, top_BHCK[..., :K]


def split_weights(scores_BHCS: Tensor, key_lengths_B: Tensor, topk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split the clusters' weights A^c at their K best keys (eq. 9).

    Returns:
        rest_BHCS: A^c with the K best keys zeroed.
        mass_BHC: what A^c has on these keys.
        top_BHCK: their positions, see `top_keys`.
    """
    shared_BHCS = masked_softmax(scores_BHCS, key_lengths_B)
    chosen_BHCS, top_BHCK = top_keys(scores_BHCS, key_lengths_B, topk)
    mass_BHC = shared_BHCS.masked_fill(~chosen_BHCS, 0.0).sum(-1)
    return shared_BHCS.masked_fill(chosen_BHCS, 0.0), mass_BHC, top_BHCK


def query_blocks(groups_BHN: Tensor, members_BHNC: Tensor) -> tuple[Tensor, Tensor, int]:
    """Lay the queries out in M blocks of I slots so that a block's queries share a cluster.

    Every cluster's last block may be part empty: M ≤ (N + C·(I − 1)) / I, known without looking at the data.

    Returns:
        slots_BHN: slot of each query, 0 … M·I − 1; M·I at padding.
        block_cluster_BHM: cluster of each block.
        I: slots in a block.
    """
    N, C = members_BHNC.shape[2:]
    block = min(LARGEST_BLOCK, -(-N // C))
    blocks = (N + C * (block - 1)) // block
    counts_BHC = members_BHNC.sum(2).long()
    last_block_BHC = (-(-counts_BHC // block)).cumsum(-1)
    first_slot_BHC = F.pad(last_block_BHC[..., :-1], (1, 0)) * block
    first_rank_BHC = counts_BHC.cumsum(-1) - counts_BHC

    valid_BHN = members_BHNC.any(-1)
    key_BHN = torch.where(valid_BHN, groups_BHN.long(), C)
    sorted_BHN, order_BHN = key_BHN.sort(dim=-1, stable=True)
    cluster_BHN = sorted_BHN.clamp(max=C - 1)
    rank_BHN = torch.arange(N, device=key_BHN.device) - first_rank_BHC.gather(-1, cluster_BHN)
    slot_BHN = torch.where(sorted_BHN < C, first_slot_BHC.gather(-1, cluster_BHN) + rank_BHN, blocks * block)
    slots_BHN = torch.empty_like(slot_BHN).scatter(-1, order_BHN, slot_BHN)

    block_BHM = torch.arange(blocks, device=key_BHN.device).expand(*last_block_BHC.shape[:2], blocks)
    block_cluster_BHM = torch.searchsorted(last_block_BHC, block_BHM.contiguous(), right=True)
    return slots_BHN, block_cluster_BHM.clamp(max=C - 1), block


class _Weights(NamedTuple):
    """The rows of A^t in two parts: what a cluster's members share, and what is theirs on the K best keys.

    Attributes:
        rest_BHCS: A^c with the K best keys zeroed, per cluster.
        members_BHNC: which query belongs to which cluster.
        exact_BHMIK: weights of the queries in block m on its cluster's keys.
        top_BHMK: positions of these keys.
        slots_BHN: where each query lies among the M·I slots.
    """

    rest_BHCS: Tensor
    members_BHNC: Tensor
    exact_BHMIK: Tensor
    top_BHMK: Tensor
    slots_BHN: Tensor


def _weights(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    groups_BHN: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
    topk: int,
) -> _Weights:
    """Compute eq. 9 and 10."""
    dtype = compute_dtype(q_BHND)
    q_BHND = zero_padding(q_BHND, query_lengths_B).to(dtype)
    k_BHSD = zero_padding(k_BHSD, key_lengths_B).to(dtype)
    members_BHNC = membership(groups_BHN, query_lengths_B, clusters, dtype)
    scores_BHCS = centroid_scores(q_BHND, k_BHSD, members_BHNC, query_lengths_B, key_lengths_B)
    rest_BHCS, mass_BHC, top_BHCK = split_weights(scores_BHCS, key_lengths_B, topk)

    slots_BHN, cluster_BHM, block = query_blocks(groups_BHN, members_BHNC)
    B, H, N, D = q_BHND.shape
    M, K = cluster_BHM.shape[-1], top_BHCK.shape[-1]
    # One slot more than the blocks have takes the padded queries.
    q_slots = q_BHND.new_zeros(B, H, M * block + 1, D)
    q_slots = q_slots.scatter(2, slots_BHN.unsqueeze(-1).expand(B, H, N, D), q_BHND * D**-0.5)
    top_BHMK = top_BHCK.gather(2, cluster_BHM.unsqueeze(-1).expand(B, H, M, K))
    scores_BHMIK = q_slots[:, :, :-1].unflatten(2, (M, block)) @ gather_rows(k_BHSD, top_BHMK).mT
    # The chosen keys fill the first min(K, length) slots: lengths mask slots as they mask positions.
    own_BHMIK = masked_softmax(scores_BHMIK.flatten(2, 3), key_lengths_B).view_as(scores_BHMIK)
    exact_BHMIK = mass_BHC.gather(2, cluster_BHM)[..., None, None] * own_BHMIK
    return _Weights(rest_BHCS, members_BHNC, exact_BHMIK, top_BHMK, slots_BHN)


def gather_rows(x_BHSD: Tensor, index_BHMK: Tensor) -> Tensor:
    """Return x's rows at the given positions, [B, H, M, K, D]."""
    index = index_BHMK.flatten(2).unsqueeze(-1).expand(-1, -1, -1, x_BHSD.shape[-1])
    return x_BHSD.gather(2, index).unflatten(2, index_BHMK.shape[2:])


def _from_blocks(x_BHMIE: Tensor, slots_BHN: Tensor) -> Tensor:
    """Bring slots back to the queries' order, [B, H, N, E]; padded queries read an arbitrary slot."""
    x_slots = x_BHMIE.flatten(2, 3)
    index_BHN = slots_BHN.clamp(max=x_slots.shape[2] - 1)
    return x_slots.gather(2, index_BHN.unsqueeze(-1).expand(-1, -1, -1, x_slots.shape[-1]))
