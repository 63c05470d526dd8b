"""Where K-means starts, and where empty clusters start again, in plain PyTorch.

Both groupings share these rules, so that repeated queries don't cost clusters: a code (a hash, or a point on
the grid) that occurs twice is one candidate, at its first position.
"""

import torch
from torch import Tensor


def distinct_positions(codes_BHN: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the first position of each distinct valid code in ascending order, [B, H, N] int64; then N.

    Without a stable sort, which torch.onnx does not support.

    Args:
        codes_BHN: int64 codes.
        lengths_B: valid positions of each sequence, 0 … N.

    Example:
        >>> distinct_positions(torch.tensor([[[7, 7, 5, 7, 2]]]), torch.tensor([4])).tolist()
        [[[0, 2, 5, 5, 5]]]
    """
    B, _, N = codes_BHN.shape
    padding_B1N = torch.arange(N, device=codes_BHN.device) >= lengths_B.view(B, 1, 1)
    sorted_BHN, position_BHN = codes_BHN.sort()
    position_BHN = position_BHN.masked_fill(padding_B1N.expand_as(codes_BHN).gather(2, position_BHN), N)
    new_BHN = sorted_BHN[..., 1:] != sorted_BHN[..., :-1]
    run_BHN = torch.nn.functional.pad(new_BHN.long(), (1, 0)).cumsum(-1)
    first_BHN = torch.full_like(codes_BHN, N).scatter_reduce(2, run_BHN, position_BHN, "amin")
    return first_BHN.sort().values


def start_positions(distinct_BHN: Tensor, clusters: int) -> Tensor:
    """Return the position of each cluster's first centroid, [B, H, min(C, N)].

    Cluster j starts from number ⌊j·n/C⌋ of the n distinct codes. If they are fewer than C, several start
    from the same code, of which all but the first remain empty.
    """
    N = distinct_BHN.shape[-1]
    count_BH1 = (distinct_BHN < N).sum(-1, keepdim=True)
    number_BHC = torch.arange(min(clusters, N), device=distinct_BHN.device) * count_BH1 // clusters
    return distinct_BHN.gather(2, number_BHC).clamp(max=N - 1)


def refill_positions(distinct_BHN: Tensor, distance_BHN: Tensor, empty_BHC: Tensor) -> Tensor:
    """Return the position whose code becomes the centroid of each empty cluster, [B, H, C].

    The first empty cluster takes the code farthest from the centroid that it joined, the next one the second
    farthest, and so on; ties go to the lowest position. N where a cluster has members, or no code is left
    that differs from its centroid.

    Args:
        distinct_BHN: see `distinct_positions`.
        distance_BHN: integer distance of each position to its centroid.
        empty_BHC: whether a cluster is empty.
    """
    N = distinct_BHN.shape[-1]
    at_BHN = distinct_BHN.clamp(max=N - 1)
    distance_BHN = distance_BHN.long().gather(2, at_BHN).masked_fill(distinct_BHN == N, 0)
    earlier_N = torch.arange(N - 1, -1, -1, device=distinct_BHN.device)
    score_BHC, number_BHC = (distance_BHN * N + earlier_N).topk(empty_BHC.shape[-1])
    farthest_BHC = at_BHN.gather(2, number_BHC).masked_fill(score_BHC < N, N)  # no distance
    place_BHC = (empty_BHC.long().cumsum(-1) - 1).clamp(min=0)
    return farthest_BHC.gather(2, place_BHC).masked_fill(~empty_BHC, N)
