"""K-means in Hamming space on the compiled kernels."""

import torch
from torch import Tensor

from attention_ext.autograd import Operator


def hamming_kmeans(
    hashes_BHN: Tensor, lengths_B: Tensor, clusters: int, iterations: int, bits: int
) -> Tensor:
    """Group hashes by Lloyd's algorithm; equals `reference.hamming_kmeans`.

    Args:
        hashes_BHN: int64 hashes; bits `bits` and above are zero.
        lengths_B: valid positions of each sequence, 0 … N.
        clusters: C, 1 … 1024.
        iterations: L assignments, 1 … 1,000,000; the CPU stops earlier once no position changes cluster.
        bits: width of a hash, 1 … 63.

    Returns:
        [B, H, N] int32, cluster of each position, 0 … min(C, n) − 1; −1 at padding.
    """
    return OPERATOR(hashes_BHN, lengths_B, clusters, iterations, bits)


OPERATOR = Operator("hamming_kmeans", lambda hashes, *_: hashes.new_empty(hashes.shape, dtype=torch.int32))
