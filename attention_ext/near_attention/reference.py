"""Attention with an exact near field and a far field by centroids in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_ext.clusters.reference import centroid_scores, membership
from attention_ext.gated_bias import LogitBias
from attention_ext.improved_clustered_attention.reference import (
    MakeProducts,
    keys_of_queries,
    products_in_blocks,
    top_keys,
)
from attention_ext.local_attention.reference import SMALLEST_BLOCK, clamp, with_neighbours
from attention_ext.tensors import compute_dtype, masked_softmax, zero_padding


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
    products: MakeProducts = products_in_blocks,
) -> Tensor:
    """Softmax over each query's own logits on the keys near it and its cluster's logits on the others.

    Let s_il = q_i·k_l/√D, s^c_jl the logit of cluster j's mean query, T_j the K keys with the highest s^c_j,
    and T_i = T_j ∪ {l : |l − i| ≤ W} for query i of cluster j. Its weights are

        A_il = exp(s_il) / Z_i for l in T_i, else exp(s^c_jl) / Z_i,
        Z_i = Σ_T_i exp(s_il) + Σ_∉T_i exp(s^c_jl).

    Gradients are those of these equations, with groups and T_j held constant. Sums over the far keys are
    never differences, which would cancel where a window holds most of a centroid's mass: blocks of far keys
    are added up in levels, as in fast multipole methods. Memory grows with N·(C + 3·max(W, 64)) + (N + C)·K,
    and, in a graph with dynamic N, with C·(N / 64)².

    Args:
        q_BHND, k_BHND, v_BHNE: queries, keys and values.
        groups_BHN: cluster of each query, 0 … min(C, N) − 1; −1 at padding.
        lengths_B: valid positions of each sequence.
        clusters: C.
        topk: K, clamped to each sequence's length.
        window: W ≥ 0, neighbours on each side.
        dropout: dropout probability of the weights; a cluster's far keys may share a mask.
        bias: term of the logits.
        products: see `improved_clustered_attention.reference`.

    Returns:
        [B, H, N, E] of v's type; zeros at padding.
    """
    dtype, out_dtype, N = compute_dtype(q_BHND), v_BHNE.dtype, q_BHND.shape[2]
    q, k, v = (zero_padding(x, lengths_B).to(dtype) for x in (q_BHND, k_BHND, v_BHNE))
    members_BHNC = membership(groups_BHN, lengths_B, clusters, dtype)
    place_N = torch.arange(N, device=q.device)
    keep_BN = place_N < lengths_B.unsqueeze(-1)
    groups_BHN = groups_BHN.masked_fill(~keep_BN.unsqueeze(1), 0)
    shared_BHCN = centroid_scores(q, k, members_BHNC, lengths_B, lengths_B, bias)
    chosen_BHCN, top_BHCK = top_keys(shared_BHCN, lengths_B, topk)
    q = q * q.shape[-1] ** -0.5
    # M queries in a block, and W positions of keys: the block and its two neighbours.
    m = clamp(max(window, SMALLEST_BLOCK), N)

    # Keys in a query's own and its neighbouring blocks.
    distance_NW = place_N.unsqueeze(-1) // m * m - m + torch.arange(3 * m, device=q.device)  # positions
    members_BHLMC = _blocks(members_BHNC, m)
    shared_BHLMW = members_BHLMC @ with_neighbours(shared_BHCN.mT, m).mT
    chosen_BHLMW = members_BHLMC @ with_neighbours(chosen_BHCN.to(dtype).mT, m).mT > 0
    exact_BHLMW = _blocks(q, m) @ with_neighbours(k, m).mT
    if bias is not None:
        exact_BHLMW = exact_BHLMW + _blocks(
            bias.of_keys(distance_NW.clamp(0, N - 1).expand(*q.shape[:3], -1)), m
        )
    within_LMW = _blocks(((distance_NW - place_N.unsqueeze(-1)).abs() <= window)[None, None], m)
    valid_BNW = (distance_NW >= 0) & (distance_NW < lengths_B.view(-1, 1, 1))
    near_BHLMW = torch.where(chosen_BHLMW | within_LMW, exact_BHLMW, shared_BHLMW)
    near_BHNW, valid_B1NW = near_BHLMW.flatten(2, 3)[:, :, :N], valid_BNW.unsqueeze(1)

    # Top keys in other blocks.
    exact_BHNK, weigh_top = products(q, k, top_BHCK, groups_BHN, members_BHNC)
    own_BHNK = keys_of_queries(top_BHCK, groups_BHN)
    if bias is not None:
        exact_BHNK = exact_BHNK + bias.of_keys(own_BHNK)
    used_BK = torch.arange(own_BHNK.shape[-1], device=q.device) < lengths_B.unsqueeze(-1)
    apart_BHNK = ((own_BHNK // m - place_N.unsqueeze(-1) // m).abs() > 1) & used_BK[:, None, None]

    # Other keys in other blocks.
    far_BHCN = keep_BN[:, None, None] & ~chosen_BHCN
    state = _block_sums(shared_BHCN, far_BHCN, v, m, dropout)
    # A graph with dynamic N has no number of levels.
    known = isinstance(N, int)
    highest_BHLC1, sums_BHLCX = far_field(*state, _levels(N, m)) if known else far_field_at_once(*state)
    sums_BHNX = (members_BHLMC @ sums_BHLCX).flatten(2, 3)[:, :, :N]
    # Gathered, because a product in TF32 would round it.
    at_BHN = place_N // m * highest_BHLC1.shape[3] + groups_BHN
    far_BHN1 = highest_BHLC1.flatten(2).gather(2, at_BHN).unsqueeze(-1)

    lowest = torch.finfo(dtype).min
    near_BHNW, exact_BHNK = (
        near_BHNW.masked_fill(~valid_B1NW, lowest),
        exact_BHNK.masked_fill(~apart_BHNK, lowest),
    )
    # The result does not depend on the maximum, so that it needs no gradient.
    tops = (near_BHNW.amax(-1, keepdim=True), exact_BHNK.amax(-1, keepdim=True), far_BHN1)
    top_BHN1 = torch.stack(tops).amax(0).detach()
    near_BHNW = (near_BHNW - top_BHN1).exp().masked_fill(~valid_B1NW, 0.0)
    exact_BHNK = (exact_BHNK - top_BHN1).exp().masked_fill(~apart_BHNK, 0.0)
    sums_BHNX = sums_BHNX * (far_BHN1 - top_BHN1).exp()
    total_BHN1 = near_BHNW.sum(-1, keepdim=True) + exact_BHNK.sum(-1, keepdim=True) + sums_BHNX[..., :1]
    mixed_BHLME = F.dropout(_blocks(near_BHNW, m), dropout) @ with_neighbours(v, m)
    out_BHNE = (
        mixed_BHLME.flatten(2, 3)[:, :, :N]
        + weigh_top(F.dropout(exact_BHNK, dropout), v)
        + sums_BHNX[..., 1:]
    )
    out_BHNE = out_BHNE / total_BHN1.masked_fill(total_BHN1 == 0, 1.0)
    return zero_padding(out_BHNE, lengths_B).to(out_dtype)


def near_weights(
    q_BHND: Tensor,
    k_BHND: Tensor,
    groups_BHN: Tensor,
    lengths_B: Tensor,
    clusters: int,
    topk: int,
    window: int,
) -> Tensor:
    """Return the dense [B, H, N, N] weights W that `near_attention` implies: output = W @ v."""
    dtype, place_N = compute_dtype(q_BHND), torch.arange(q_BHND.shape[2], device=q_BHND.device)
    q, k = zero_padding(q_BHND, lengths_B).to(dtype), zero_padding(k_BHND, lengths_B).to(dtype)
    members_BHNC = membership(groups_BHN, lengths_B, clusters, dtype)
    shared_BHCN = centroid_scores(q, k, members_BHNC, lengths_B, lengths_B)
    chosen_BHCN, _ = top_keys(shared_BHCN, lengths_B, topk)
    exact_BHNN = members_BHNC @ chosen_BHCN.to(dtype) > 0
    exact_BHNN = exact_BHNN | ((place_N - place_N.unsqueeze(-1)).abs() <= window)
    scores_BHNN = torch.where(exact_BHNN, (q * q.shape[-1] ** -0.5) @ k.mT, members_BHNC @ shared_BHCN)
    return zero_padding(masked_softmax(scores_BHNN, lengths_B), lengths_B)


def _blocks(x_BHND: Tensor, m: int) -> Tensor:
    """Return blocks of m positions, [B, H, L, M, D]; zeros after the last position."""
    return F.pad(x_BHND, (0, 0, 0, -x_BHND.shape[2] % m)).unflatten(2, (-1, m))


def _block_sums(
    shared_BHCN: Tensor, far_BHCN: Tensor, v_BHNE: Tensor, m: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """Sum over the far keys of each block of m keys.

    Returns:
        The highest logit of every cluster in every block, [B, H, L, C, 1], the lowest number without a far
        key; and, with w = exp(logit − highest), Σ w followed by Σ w·v, [B, H, L, C, 1 + E].
    """
    far_BHLCM = _blocks(far_BHCN.mT, m).mT
    scores_BHLCM = _blocks(shared_BHCN.mT, m).mT
    filled_BHLCM = scores_BHLCM.masked_fill(~far_BHLCM, torch.finfo(v_BHNE.dtype).min)
    highest_BHLC1 = filled_BHLCM.amax(-1, keepdim=True).detach()
    weights_BHLCM = (filled_BHLCM - highest_BHLC1).exp().masked_fill(~far_BHLCM, 0.0)
    values_BHLCE = F.dropout(weights_BHLCM, dropout) @ _blocks(v_BHNE, m)
    return highest_BHLC1, torch.cat((weights_BHLCM.sum(-1, keepdim=True), values_BHLCE), dim=-1)


def _levels(N: int, m: int) -> int:
    """Return how often blocks must be joined in pairs until all are neighbours."""
    return max(0, (-(-N // m) - 1).bit_length() - 1)


def far_field(highest_BHLC1: Tensor, sums_BHLCX: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Return, for each block, the sums over all blocks but itself and its two neighbours.

    Blocks far from a pair are far from both of its members. In addition, each is far from three of the
    four blocks in the two neighbouring pairs.
    """
    if levels == 0:
        return torch.full_like(highest_BHLC1, torch.finfo(highest_BHLC1.dtype).min), torch.zeros_like(
            sums_BHLCX
        )
    blocks = highest_BHLC1.shape[2]
    state = highest_BHLC1, sums_BHLCX
    empty = torch.finfo(highest_BHLC1.dtype).min, 0.0
    pairs = [
        F.pad(x, (0, 0, 0, 0, 0, blocks % 2), value=value).unflatten(2, (-1, 2))
        for x, value in zip(state, empty, strict=True)
    ]
    first, second = (tuple(x[:, :, :, side] for x in pairs) for side in (0, 1))
    last_first, next_first = _neighbours(first, empty)
    last_second, next_second = _neighbours(second, empty)
    common = _merge(far_field(*_merge(first, second), levels - 1), last_first, next_second)
    both = _merge(common, next_first), _merge(common, last_second)
    highest, sums = (
        torch.stack(sides, dim=3).flatten(2, 3)[:, :, :blocks] for sides in zip(*both, strict=True)
    )
    return highest, sums


def far_field_at_once(highest_BHLC1: Tensor, sums_BHLCX: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same from one product of L × L numbers per cluster."""
    block_L = torch.arange(highest_BHLC1.shape[2], device=highest_BHLC1.device)
    near_LL = (block_L - block_L.unsqueeze(-1)).abs() <= 1
    others_BHC1L = highest_BHLC1.permute(0, 1, 3, 4, 2)
    others_BHCLL = others_BHC1L.masked_fill(near_LL, torch.finfo(highest_BHLC1.dtype).min)
    top_BHCL1 = others_BHCLL.amax(-1, keepdim=True)
    weights_BHCLL = (others_BHCLL - top_BHCL1).exp().masked_fill(near_LL, 0.0)
    return top_BHCL1.transpose(2, 3), (weights_BHCLL @ sums_BHLCX.transpose(2, 3)).transpose(2, 3)


def _neighbours(state: tuple[Tensor, ...], empty: tuple[float, float]) -> tuple[tuple[Tensor, ...], ...]:
    """Return the state of the block before and of the block after each block."""
    edges = [x[:, :, :1].new_full(x[:, :, :1].shape, value) for x, value in zip(state, empty, strict=True)]
    before = tuple(torch.cat((edge, x[:, :, :-1]), dim=2) for edge, x in zip(edges, state, strict=True))
    after = tuple(torch.cat((x[:, :, 1:], edge), dim=2) for edge, x in zip(edges, state, strict=True))
    return before, after


def _merge(*states: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Add sums that are relative to different logits."""
    highest = torch.stack([state[0] for state in states]).amax(0)
    return highest, sum((x * (top - highest).exp() for top, x in states), torch.zeros_like(states[0][1]))
