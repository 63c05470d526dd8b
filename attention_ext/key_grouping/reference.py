"""K-means of queries in the metric of the keys in plain PyTorch, the oracle for the compiled kernels."""

import torch
from torch import Tensor

from attention_ext.clusters.starts import distinct_positions, refill_positions, start_positions
from attention_ext.tensors import zero_padding

# In the covariance, at evenly spread positions: its cost doesn't grow with the length, and all keys would
# gain 1 % of the distance from full attention (NOTES.md).
MOST_KEYS = 128
STEPS = 2  # power iterations; a third gains less than that
SINGULAR = 2.0**-40  # directions with less than this share of the variance are dropped
CODE_BASE, CODE_PRIME = 2_654_435_769, 4_294_967_291  # golden ratio of 2³²; the largest prime below it
GRID = 2.0**13  # distance of the farthest query from the first one, in grid steps


def key_groups(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
    rank: int,
    iterations: int,
) -> Tensor:
    """Group queries whose attention weights differ little, by Lloyd's algorithm.

    The weights of a query depend on it only through its logits, and the softmax ignores what is added to all
    of them. The variance over the keys of the difference of two queries' logits is, but for the factor 1/D,

        d²(q, q') = (q − q')ᵀ Σ (q − q') = ‖Rᵀq − Rᵀq'‖²,   Σ = R Rᵀ the covariance of the valid keys,

    so that this is Euclidean K-means of x = Rᵀq. `key_factor` approximates R by `rank` columns. Points are
    rounded to a grid, so that all further arithmetic is in integers, exact in float64: groups don't depend
    on the batch, on padding or on the order of sums.

    Deterministic: the initial centroid of cluster j is number ⌊j·n/C⌋ of the n distinct points, in the order
    in which they first occur; a query joins the nearest centroid, on ties the one with the lowest index; a
    centroid becomes the mean of its members, rounded to the grid. Empty clusters become the points farthest
    from the centroids that they joined, see `refill_positions`; a cluster keeps its centroid if every point
    equals its own. With at most C valid queries, every query is its own cluster. Equal keys put all queries
    into cluster 0. So do infinite or NaN valid inputs, in general.

    Memory grows with N·C.

    Args:
        q_BHND: queries of any floating type.
        k_BHSD: keys.
        query_lengths_B, key_lengths_B: valid queries and keys of each sequence.
        clusters: C ≥ 1.
        rank: columns of R, at least 1; at most D are used.
        iterations: L ≥ 1 assignments, with L − 1 updates of the centroids between them.

    Returns:
        [B, H, N] int32, cluster of each query, 0 … min(C, n) − 1; −1 at padding.

    Example:
        >>> q = torch.tensor([[0.0, 9.0], [1.0, -9.0], [0.1, 7.0], [1.1, 0.0]]).view(1, 1, 4, 2)
        >>> k = torch.tensor([[1.0, 5.0], [-1.0, 5.0]]).view(1, 1, 2, 2)  # the second entry is constant
        >>> key_groups(q, k, torch.tensor([4]), torch.tensor([2]), clusters=2, rank=2, iterations=2).tolist()
        [[[0, 1, 0, 1]]]
    """
    B, _, N, _ = q_BHND.shape
    if N == 0:
        return q_BHND.new_zeros(q_BHND.shape[:3], dtype=torch.int32)
    position_N = torch.arange(N, device=q_BHND.device)
    points_BHNR = _grid_points(q_BHND, query_lengths_B, key_factor(k_BHSD, key_lengths_B, rank))
    groups_BHN = _lloyd(points_BHNR, query_lengths_B, clusters, iterations)
    lengths_B11 = query_lengths_B.view(B, 1, 1)
    groups_BHN = torch.where(lengths_B11 <= clusters, position_N, groups_BHN)
    return groups_BHN.masked_fill(position_N >= lengths_B11, -1).int()


def key_factor(k_BHSD: Tensor, key_lengths_B: Tensor, rank: int) -> Tensor:
    """Return R with R Rᵀ ≈ Σ, up to a constant, [B, H, D, min(rank, D)] in float64.

    Σ is the covariance of the valid keys, or of `MOST_KEYS` of them at evenly spread positions. A power
    iteration from fixed directions, without an eigendecomposition:

        U ← R, orthonormalised by Gram and Schmidt in the inner product uᵀΣu';   R ← ΣU.

    R Rᵀ = ΣU(UᵀΣU)⁻¹UᵀΣ is the Nyström approximation of Σ, exact for rank ≥ D and whenever the rank of Σ is
    lower. Directions without variance become zero.
    """
    B, H, S, D = k_BHSD.shape
    rank = min(rank, D)
    if S == 0:
        return k_BHSD.new_zeros((B, H, D, rank), dtype=torch.float64)
    used_B1 = key_lengths_B.view(B, 1).clamp(max=MOST_KEYS)
    place_M = torch.arange(MOST_KEYS, device=k_BHSD.device)
    position_BM = (place_M * key_lengths_B.view(B, 1) // used_B1.clamp(min=1)).clamp(max=S - 1)
    keys_BHMD = k_BHSD.gather(2, position_BM.view(B, 1, MOST_KEYS, 1).expand(B, H, MOST_KEYS, D)).double()
    # Differences to the first key: exactly zero for equal keys.
    keys_BHMD = zero_padding(keys_BHMD - keys_BHMD[:, :, :1], used_B1.view(B))
    total_BHD1 = keys_BHMD.sum(2).unsqueeze(-1)
    covariance_BHDD = keys_BHMD.mT @ keys_BHMD
    covariance_BHDD = covariance_BHDD - total_BHD1 * total_BHD1.mT / used_B1.clamp(min=1).view(B, 1, 1, 1)

    factor_BHDR = _directions(D, rank, k_BHSD.device).expand(B, H, D, rank)
    for _ in range(STEPS):
        factor_BHDR = _nystrom(covariance_BHDD, factor_BHDR)
    return factor_BHDR


def _directions(dim: int, rank: int, device: torch.device) -> Tensor:
    """Return fixed directions in general position, [D, R]: cubes modulo a prime.

    Squares would be linearly dependent, because their second differences are constant.
    """
    column_R = torch.arange(1, rank + 1, device=device)
    number_DR = 256 * column_R + torch.arange(1, dim + 1, device=device).unsqueeze(1)
    return (number_DR**3 % 1021).double() / 1021 - 0.5


def _nystrom(covariance_BHDD: Tensor, factor_BHDR: Tensor) -> Tensor:
    """Return ΣU, where U spans the columns of the factor and UᵀΣU = 1, by Cholesky's algorithm."""
    D, rank = factor_BHDR.shape[-2:]
    image_BHDR = covariance_BHDD @ factor_BHDR
    rest_BHXR = torch.cat((image_BHDR, factor_BHDR.mT @ image_BHDR), -2)  # X = D + R rows
    least_BH = SINGULAR * rest_BHXR[..., D:, :].diagonal(dim1=-2, dim2=-1).sum(-1)
    columns = []
    for j in range(rank):
        pivot_BH = rest_BHXR[..., D + j, j]
        scale_BH = torch.where(pivot_BH > least_BH, pivot_BH, torch.inf).rsqrt()
        column_BHX = rest_BHXR[..., j] * scale_BH.unsqueeze(-1)
        columns.append(column_BHX[..., :D])
        rest_BHXR = rest_BHXR - column_BHX.unsqueeze(-1) * column_BHX[..., D:].unsqueeze(-2)
    return torch.stack(columns, -1)


def _grid_points(q_BHND: Tensor, query_lengths_B: Tensor, factor_BHDR: Tensor) -> Tensor:
    """Return Rᵀ(q − first query) on the grid, [B, H, N, R], integers in float64; zero at padding."""
    q_BHND = q_BHND.double()
    shifted_BHND = zero_padding(q_BHND - q_BHND[:, :, :1], query_lengths_B)
    points_BHNR = shifted_BHND @ factor_BHDR
    farthest_BH11 = points_BHNR.square().sum(-1, keepdim=True).amax(2, keepdim=True).sqrt()
    points_BHNR = points_BHNR * (GRID / farthest_BH11.clamp(min=1e-290))
    return points_BHNR.round().nan_to_num(0.0, 0.0, 0.0)


def _lloyd(points_BHNR: Tensor, lengths_B: Tensor, clusters: int, iterations: int) -> Tensor:
    """Return the cluster of each point, [B, H, N]; arbitrary at padding."""
    B, H, N, rank = points_BHNR.shape
    C = min(clusters, N)  # at most N clusters can have members
    distinct_BHN = distinct_positions(point_codes(points_BHNR), lengths_B)

    def points_at(position_BHC: Tensor) -> Tensor:
        return points_BHNR.gather(2, position_BHC.unsqueeze(-1).expand(B, H, C, rank))

    centroids_BHCR = points_at(start_positions(distinct_BHN, clusters))
    # The column of ones counts the members; padding adds nothing.
    members_BHNX = zero_padding(torch.nn.functional.pad(points_BHNR, (0, 1), value=1.0), lengths_B)

    groups_BHN, distance_BHN = _nearest(points_BHNR, centroids_BHCR)
    for _ in range(iterations - 1):
        index_BHNX = groups_BHN.unsqueeze(-1).expand_as(members_BHNX)
        sums_BHCX = members_BHNX.new_zeros(B, H, C, rank + 1).scatter_add(2, index_BHNX, members_BHNX)
        sum_BHCR, count_BHC1 = sums_BHCX[..., :-1], sums_BHCX[..., -1:]
        mean_BHCR = ((2 * sum_BHCR + count_BHC1) / (2 * count_BHC1.clamp(min=1.0))).floor()
        refill_BHC = refill_positions(distinct_BHN, distance_BHN, count_BHC1.squeeze(-1) == 0)
        kept_BHCR = torch.where(count_BHC1 > 0, mean_BHCR, centroids_BHCR)
        refilled_BHC1 = (refill_BHC < N).unsqueeze(-1)
        centroids_BHCR = torch.where(refilled_BHC1, points_at(refill_BHC.clamp(max=N - 1)), kept_BHCR)
        groups_BHN, distance_BHN = _nearest(points_BHNR, centroids_BHCR)
    return groups_BHN


def point_codes(points_BHNR: Tensor) -> Tensor:
    """Return an integer for each grid point, [B, H, N] int64; two points share one by accident of 2⁻³².

    A sum of the coordinates with weights below 2³², exact in float64 in any order, because coordinates have a
    2-norm of at most 2¹³ and a half for the rounding of each.
    """
    weights = [pow(CODE_BASE, j + 1, CODE_PRIME) for j in range(points_BHNR.shape[-1])]
    # Filled one by one: a tensor of a list is copied to the device, and that synchronises.
    return (points_BHNR @ torch.stack([points_BHNR.new_full((), weight) for weight in weights])).long()


def _nearest(points_BHNR: Tensor, centroids_BHCR: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centroid, with the largest 2·x·c − ‖c‖², and its squared distance, each [B, H, N].

    The first among equals.
    """
    squares_BH1C = centroids_BHCR.square().sum(-1).unsqueeze(-2)
    best_BHN, groups_BHN = (2 * points_BHNR @ centroids_BHCR.mT - squares_BH1C).max(-1)
    return groups_BHN, points_BHNR.square().sum(-1) - best_BHN
