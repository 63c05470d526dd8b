"""K-means in Hamming space in plain PyTorch, the oracle for the compiled kernels."""

import torch
from torch import Tensor


def hamming_kmeans(
    hashes_BHN: Tensor, lengths_B: Tensor, clusters: int, iterations: int, bits: int
) -> Tensor:
    """Group hashes by Lloyd's algorithm: L assignments with L − 1 centroid updates between them.

    *Fast Transformers with Clustered Attention* §3.2.2. Deterministic: with n valid positions, the initial
    centroid of cluster j is the hash at position ⌊j·n/C⌋; a position joins the nearest centroid, on ties the
    one with the lowest index; a centroid becomes the bitwise majority of its members, ties give 0; an empty
    cluster keeps its centroid. With n ≤ C every position is its own cluster.

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
    starts_BC = torch.arange(C, device=device) * lengths_B.view(B, 1) // clusters
    centroids_BHCP = signs_BHNP.gather(2, starts_BC.view(B, 1, C, 1).expand(B, H, C, bits))
    # The column of ones counts the members; padding adds nothing.
    members_BHNP = torch.nn.functional.pad(signs_BHNP, (0, 1), value=1.0)
    members_BHNP = members_BHNP.masked_fill(~valid_B1N.unsqueeze(-1), 0.0)

    groups_BHN = (signs_BHNP @ centroids_BHCP.mT).argmax(-1)
    for _ in range(iterations - 1):
        index_BHNP = groups_BHN.unsqueeze(-1).expand_as(members_BHNP)
        sums_BHCP = members_BHNP.new_zeros(B, H, C, bits + 1).scatter_add(2, index_BHNP, members_BHNP)
        majority_BHCP = torch.where(sums_BHCP[..., :-1] > 0, 1.0, -1.0)
        centroids_BHCP = torch.where(sums_BHCP[..., -1:] > 0, majority_BHCP, centroids_BHCP)
        groups_BHN = (signs_BHNP @ centroids_BHCP.mT).argmax(-1)

    groups_BHN = torch.where(lengths_B.view(B, 1, 1) <= clusters, position_N, groups_BHN)
    return groups_BHN.masked_fill(~valid_B1N, -1).int()
