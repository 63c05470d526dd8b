"""Improved clustered attention in plain PyTorch, the oracle for the compiled kernels."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_ext.clusters.reference import centroid_scores, membership
from attention_ext.gated_bias import LogitBias
from attention_ext.tensors import compute_dtype, masked_softmax, zero_padding

LARGEST_BLOCK = 32  # queries that share one gathered copy of their cluster's keys

# Logits [B, H, N, K] of every query on its cluster's top keys, and the function that weighs their values
# [B, H, N, E] by [B, H, N, K]; and the function that maps scaled queries, keys, top keys [B, H, C, K], groups
# and members to both.
Products = tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]
MakeProducts = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Products]


def products_in_blocks(
    q_BHND: Tensor, k_BHSD: Tensor, top_BHCK: Tensor, groups_BHN: Tensor, members_BHNC: Tensor
) -> Products:
    """Return `Products` for queries sorted into blocks, which share a copy of their cluster's rows."""
    slots_BHN, cluster_BHM, block = query_blocks(groups_BHN, members_BHNC)
    B, H, M = cluster_BHM.shape
    top_BHMK = top_BHCK.gather(2, cluster_BHM.unsqueeze(-1).expand(B, H, M, top_BHCK.shape[-1]))

    def weigh(weights_BHNK: Tensor, v_BHSE: Tensor) -> Tensor:
        weights_BHMIK = to_blocks(weights_BHNK, slots_BHN, M, block)
        return from_blocks(weights_BHMIK @ gather_rows(v_BHSE, top_BHMK), slots_BHN)

    scores_BHMIK = to_blocks(q_BHND, slots_BHN, M, block) @ gather_rows(k_BHSD, top_BHMK).mT
    return from_blocks(scores_BHMIK, slots_BHN), weigh


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
    products: MakeProducts = products_in_blocks,
) -> Tensor:
    """Clustered attention with weights recomputed for each query on its cluster's top K keys.

    *Fast Transformers with Clustered Attention* eq. 9–11 and 15–17. Let T_j be the K keys with the largest
    weights in cluster j's row A^c_j, and m̂_j = Σ_{l∈T_j} A^c_jl. Query i of cluster j has the weights
    m̂_j · softmax_{l∈T_j}(q_i·k_l/√D) on the keys in T_j and A^c_jl on the others. Gradients are those of
    these equations, m̂_j included, with groups and T_j held constant. Memory grows with C·(N + S) + (N + C)·K.

    Args:
        q_BHND, k_BHSD, v_BHSE: queries, keys and values.
        groups_BHN: cluster of each query, 0 … min(C, N) − 1; −1 at padding.
        query_lengths_B, key_lengths_B: valid positions, 0 … N and 0 … S.
        clusters: C.
        topk: K, clamped to each sequence's key length.
        dropout: dropout probability of the weights of both parts; m̂_j is taken before dropout.
        bias: term of the logits; self-attention only.
        products: how queries meet their cluster's top keys; see `graph`.

    Returns:
        [B, H, N, E] of v's type; zeros at padded queries, and for a sequence without valid keys.
    """
    sizes = query_lengths_B, key_lengths_B, clusters, topk
    weights = _weights(q_BHND, k_BHSD, groups_BHN, *sizes, bias, products)
    v_BHSE, out_dtype = zero_padding(v_BHSE, key_lengths_B).to(weights.rest_BHCS.dtype), v_BHSE.dtype
    own_BHNE = weights.weigh(F.dropout(weights.exact_BHNK, dropout), v_BHSE)
    out_BHNE = own_BHNE + weights.members_BHNC @ (F.dropout(weights.rest_BHCS, dropout) @ v_BHSE)
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
    sizes = query_lengths_B, key_lengths_B, clusters, topk
    weights = _weights(q_BHND, k_BHSD, groups_BHN, *sizes, None, products_in_blocks)
    top_BHNK = keys_of_queries(weights.top_BHCK, weights.groups_BHN)
    shared_BHNS = weights.members_BHNC @ weights.rest_BHCS
    return zero_padding(shared_BHNS.scatter_add(3, top_BHNK, weights.exact_BHNK), query_lengths_B)


def top_keys(scores_BHCS: Tensor, key_lengths_B: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """Choose the K keys with the highest logits in each row; ties go to the lowest positions.

    Returns:
        [B, H, C, S] bool, True for the min(K, key length) chosen keys, and their positions
        [B, H, C, min(K, S)] int64 in ascending order, 0 in the unused slots of a short sequence.
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
    # The i-th chosen key writes its position to slot i; all others write to a slot that is discarded.
    slot_BHCS = torch.where(chosen_BHCS, chosen_BHCS.cumsum(-1) - 1, K)
    position_BHCS = torch.arange(S, device=scores_BHCS.device).expand_as(slot_BHCS)
    top_BHCK = slot_BHCS.new_zeros(*slot_BHCS.shape[:-1], K + 1).scatter(-1, slot_BHCS, position_BHCS)
    return chosen_BHCS, top_BHCK[..., :K]


def split_weights(scores_BHCS: Tensor, key_lengths_B: Tensor, topk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split the clusters' weights A^c into top K keys and the rest (eq. 9).

    Returns:
        rest_BHCS: A^c with the top keys zeroed.
        mass_BHC: sum of A^c over the top keys.
        top_BHCK: positions of the top keys, see `top_keys`.
    """
    shared_BHCS = masked_softmax(scores_BHCS, key_lengths_B)
    chosen_BHCS, top_BHCK = top_keys(scores_BHCS, key_lengths_B, topk)
    mass_BHC = shared_BHCS.masked_fill(~chosen_BHCS, 0.0).sum(-1)
    return shared_BHCS.masked_fill(chosen_BHCS, 0.0), mass_BHC, top_BHCK


def query_blocks(groups_BHN: Tensor, members_BHNC: Tensor) -> tuple[Tensor, Tensor, int]:
    """Arrange the queries in M blocks of I slots, each block for queries of a single cluster.

    A cluster's last block may be partly empty: M = ⌊(N + C·(I − 1)) / I⌋ is enough for any data.

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
    """The rows of A^t in two parts: weights shared by a cluster, and each query's own on the top K keys.

    Attributes:
        rest_BHCS: A^c of each cluster with the top keys zeroed.
        members_BHNC: cluster membership, see `membership`.
        exact_BHNK: weights of each query on its cluster's top keys; arbitrary at padding.
        top_BHCK: positions of the top keys.
        groups_BHN: cluster of each query; 0 at padding.
        weigh: see `Products`.
    """

    rest_BHCS: Tensor
    members_BHNC: Tensor
    exact_BHNK: Tensor
    top_BHCK: Tensor
    groups_BHN: Tensor
    weigh: Callable[[Tensor, Tensor], Tensor]


def _weights(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    groups_BHN: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
    topk: int,
    bias: LogitBias | None,
    products: MakeProducts,
) -> _Weights:
    """Compute eq. 9 and 10."""
    dtype = compute_dtype(q_BHND)
    q_BHND = zero_padding(q_BHND, query_lengths_B).to(dtype)
    k_BHSD = zero_padding(k_BHSD, key_lengths_B).to(dtype)
    members_BHNC = membership(groups_BHN, query_lengths_B, clusters, dtype)
    groups_BHN = zero_padding(groups_BHN.unsqueeze(-1), query_lengths_B).squeeze(-1)
    scores_BHCS = centroid_scores(q_BHND, k_BHSD, members_BHNC, query_lengths_B, key_lengths_B, bias)
    rest_BHCS, mass_BHC, top_BHCK = split_weights(scores_BHCS, key_lengths_B, topk)
    scaled_BHND = q_BHND * q_BHND.shape[-1] ** -0.5
    scores_BHNK, weigh = products(scaled_BHND, k_BHSD, top_BHCK, groups_BHN, members_BHNC)
    if bias is not None:
        scores_BHNK = scores_BHNK + bias.of_keys(keys_of_queries(top_BHCK, groups_BHN))
    mass_BHN1 = mass_BHC.gather(2, groups_BHN.long()).unsqueeze(-1)
    # The top keys fill the first min(K, length) slots, so that the key lengths mask unused slots.
    exact_BHNK = mass_BHN1 * masked_softmax(scores_BHNK, key_lengths_B)
    return _Weights(rest_BHCS, members_BHNC, exact_BHNK, top_BHCK, groups_BHN, weigh)


def gather_rows(x_BHSD: Tensor, index_BHMK: Tensor) -> Tensor:
    """Return the rows of x at the given positions, [B, H, M, K, D]."""
    index = index_BHMK.flatten(2).unsqueeze(-1).expand(-1, -1, -1, x_BHSD.shape[-1])
    return x_BHSD.gather(2, index).unflatten(2, index_BHMK.shape[2:])


def keys_of_queries(top_BHCK: Tensor, groups_BHN: Tensor) -> Tensor:
    """Return the top keys of each query's cluster, [B, H, N, K]."""
    index_BHN1 = groups_BHN.long().unsqueeze(-1)
    return top_BHCK.gather(2, index_BHN1.expand(-1, -1, -1, top_BHCK.shape[-1]))


def to_blocks(x_BHND: Tensor, slots_BHN: Tensor, blocks: int, size: int) -> Tensor:
    """Arrange the rows of x in blocks, [B, H, M, I, D]; zeros in empty slots."""
    B, H, N, D = x_BHND.shape
    # Padded queries share one extra slot.
    x_slots = x_BHND.new_zeros(B, H, blocks * size + 1, D)
    x_slots = x_slots.scatter(2, slots_BHN.unsqueeze(-1).expand(B, H, N, D), x_BHND)
    return x_slots[:, :, :-1].unflatten(2, (blocks, size))


def from_blocks(x_BHMIE: Tensor, slots_BHN: Tensor) -> Tensor:
    """Gather the slots in query order, [B, H, N, E]; padded queries get an arbitrary slot."""
    x_slots = x_BHMIE.flatten(2, 3)
    index_BHN = slots_BHN.clamp(max=x_slots.shape[2] - 1)
    return x_slots.gather(2, index_BHN.unsqueeze(-1).expand(-1, -1, -1, x_slots.shape[-1]))
