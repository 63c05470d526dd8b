"""CAST's two ways to fill clusters: each takes its best tokens, or each token joins exactly one."""

import torch
from torch import Tensor

from asr.lengths import keep_mask


def assign_top(
    affinity_BHNC: Tensor, lengths_B: Tensor, capacity_B: Tensor, slots: int
) -> tuple[Tensor, Tensor]:
    """Give every cluster its κ best tokens (Top-K); of equals the first. A token may be in none or several.

    Args:
        affinity_BHNC: tokens' affinity to clusters, ≥ 0.
        lengths_B: valid tokens n.
        capacity_B: κ ≤ n of each sequence.
        slots: the largest κ.

    Returns:
        Tokens [B, H, C, K] int64, and [B, H, C, K] bool: True in filled slots.
    """
    keep_BN = keep_mask(lengths_B, affinity_BHNC.shape[2])
    ranked_BHNC = affinity_BHNC.masked_fill(~keep_BN[:, None, :, None], -1.0)
    members_BHCK = ranked_BHNC.mT.sort(dim=-1, descending=True, stable=True).indices[..., :slots]
    filled_BHCK = keep_mask(capacity_B, slots)[:, None, None, :].expand_as(members_BHCK)
    return members_BHCK, filled_BHCK


def assign_single(
    affinity_BHNC: Tensor, lengths_B: Tensor, capacity_B: Tensor, slots: int
) -> tuple[Tensor, Tensor]:
    """Give every token to one cluster (Single Assignment Top-K), greedily, at most κ to a cluster.

    In rounds: each token that is still free bids for the best cluster that has room, and each cluster accepts
    its best bidders until it is full. A round that leaves a token free has filled a cluster, so C rounds do.

    Args:
        affinity_BHNC: tokens' affinity to clusters, ≥ 0.
        lengths_B: valid tokens n.
        capacity_B: κ of each sequence, κ·C ≥ n.
        slots: the largest κ.

    Returns:
        Tokens [B, H, C, K] int64, and [B, H, C, K] bool: True in filled slots.
    """
    B, H, N, C = affinity_BHNC.shape
    free_BHN = keep_mask(lengths_B, N).unsqueeze(1).expand(B, H, N)
    position_BHN = torch.arange(N, device=affinity_BHNC.device).expand(B, H, N)
    taken_BHC = torch.zeros(B, H, C, dtype=torch.int64, device=affinity_BHNC.device)
    # One slot more than the clusters have is where rejected bids are written.
    members = torch.zeros(B, H, C * slots + 1, dtype=torch.int64, device=affinity_BHNC.device)
    filled = torch.zeros_like(members, dtype=torch.bool)
    for _ in range(C):
        full_BH1C = (taken_BHC >= capacity_B.view(B, 1, 1)).unsqueeze(2)
        score_BHN, bid_BHN = affinity_BHNC.masked_fill(full_BH1C, -1.0).max(-1)
        bid_BHN = torch.where(free_BHN, bid_BHN, C)
        # Sorted by score, then stably by bid: each cluster's bidders side by side, the best first.
        by_score_BHN = score_BHN.sort(dim=-1, descending=True, stable=True).indices
        bid_BHN, by_bid_BHN = bid_BHN.gather(-1, by_score_BHN).sort(dim=-1, stable=True)
        token_BHN = by_score_BHN.gather(-1, by_bid_BHN)

        cluster_BHN = bid_BHN.clamp(max=C - 1)
        bids_BHC = torch.zeros_like(taken_BHC).scatter_add(-1, cluster_BHN, (bid_BHN < C).long())
        first_BHC = bids_BHC.cumsum(-1) - bids_BHC
        slot_BHN = taken_BHC.gather(-1, cluster_BHN) + position_BHN - first_BHC.gather(-1, cluster_BHN)
        accepted_BHN = (bid_BHN < C) & (slot_BHN < capacity_B.view(B, 1, 1))

        target_BHN = torch.where(accepted_BHN, cluster_BHN * slots + slot_BHN, C * slots)
        members = members.scatter(-1, target_BHN, token_BHN)
        filled = filled.scatter(-1, target_BHN, True)
        free_BHN = free_BHN & ~torch.zeros_like(free_BHN).scatter(-1, token_BHN, accepted_BHN)
        taken_BHC = taken_BHC.scatter_add(-1, cluster_BHN, accepted_BHN.long())
    return members[..., :-1].view(B, H, C, slots), filled[..., :-1].view(B, H, C, slots)
