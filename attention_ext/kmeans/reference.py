"""K-means in Hamming space in plain PyTorch, the oracle for the compiled kernels."""

import torch
from torch import Tensor

from attention_ext.clusters.starts import distinct_positions, refill_positions, start_positions


def hamming_kmeans(
    hashes_BHN: Tensor, lengths_B: Tensor, clusters: int, iterations: int, bits: int
) -> Tensor:
    """Group hashes by Lloyd's algorithm: L assignments with L − 1 centroid updates between them.

    *Fast Transformers with Clustered Attention* §3.2.2. Deterministic: the initial centroid of cluster j is
    number ⌊j·n/C⌋ of the n distinct hashes, in the order in which they first occur; a position joins the
    nearest centroid, on ties the one with the lowest index; a centroid becomes the bitwise majority of its
    members, ties give 0. Empty clusters become the hashes farthest from the centroids that they joined, see
    `refill_positions`; a cluster keeps its centroid if every hash equals its own. With at most C valid
    positions, every position is its own cluster.

    Bits are mapped to ±1, so that the product of two hashes is bits − 2·(Hamming distance): a small integer,
    exact in float32. Memory grows with N·C.

    Args:
        hashes_BHN: int64 hashes; bits `bits` and above are zero.
        lengths_B: valid positions of each sequence, 0 … N.
        clusters: C ≥ 1.
        iterations: L ≥ 1 assignments.
        bits: width of a hash, 1 … 63.

    Returns:
        [B, H, N] int32, cluster of each position, 0 … min(C, n) − 1; −1 at padding.

    Example:
        >>> hashes = torch.tensor([[[0b000, 0b110, 0b111, 0b001]]])
        >>> hamming_kmeans(hashes, torch.tensor([4]), clusters=2, iterations=3, bits=3).tolist()
        [[[0, 1, 1, 0]]]
    """
    B, H, N = hashes_BHN.shape
    device = hashes_BHN.device
    position_N = torch.arange(N, device=device)
    valid_B1N = position_N < lengths_B.view(B, 1, 1)
    # At most N clusters can have members.
    C = min(clusters, N)
    if N == 0:
        return hashes_BHN.int()

    # torch.onnx does not support `>>`.
    bits_BHNP = torch.bitwise_right_shift(hashes_BHN.unsqueeze(-1), torch.arange(bits, device=device)) & 1
    signs_BHNP = (2 * bits_BHNP - 1).float()
    distinct_BHN = distinct_positions(hashes_BHN, lengths_B)

    def signs_at(position_BHC: Tensor) -> Tensor:
        return signs_BHNP.gather(2, position_BHC.unsqueeze(-1).expand(B, H, C, bits))

    centroids_BHCP = signs_at(start_positions(distinct_BHN, clusters))
    # The column of ones counts the members; padding adds nothing.
    members_BHNP = torch.nn.functional.pad(signs_BHNP, (0, 1), value=1.0)
    members_BHNP = members_BHNP.masked_fill(~valid_B1N.unsqueeze(-1), 0.0)

    alike_BHN, groups_BHN = (signs_BHNP @ centroids_BHCP.mT).max(-1)
    for _ in range(iterations - 1):
        index_BHNP = groups_BHN.unsqueeze(-1).expand_as(members_BHNP)
        sums_BHCP = members_BHNP.new_zeros(B, H, C, bits + 1).scatter_add(2, index_BHNP, members_BHNP)
        majority_BHCP = torch.where(sums_BHCP[..., :-1] > 0, 1.0, -1.0)
        empty_BHC = sums_BHCP[..., -1] == 0
        refill_BHC = refill_positions(distinct_BHN, (bits - alike_BHN) / 2, empty_BHC)
        refilled_BHC1 = (refill_BHC < N).unsqueeze(-1)
        kept_BHCP = torch.where(empty_BHC.unsqueeze(-1), centroids_BHCP, majority_BHCP)
        centroids_BHCP = torch.where(refilled_BHC1, signs_at(refill_BHC.clamp(max=N - 1)), kept_BHCP)
        alike_BHN, groups_BHN = (signs_BHNP @ centroids_BHCP.mT).max(-1)

    groups_BHN = torch.where(lengths_B.view(B, 1, 1) <= clusters, position_N, groups_BHN)
    return groups_BHN.masked_fill(~valid_B1N, -1).int()
