"""K-means in Hamming space by the compiled kernels."""

import torch
from torch import Tensor

from attention_ext.library import require


def hamming_kmeans(
    hashes_BHN: Tensor, lengths_B: Tensor, clusters: int, iterations: int, bits: int
) -> Tensor:
    """Group hashes by Lloyd's algorithm: the groups that `reference.hamming_kmeans` finds.

    Args:
        hashes_BHN: int64, the bits above `bits` clear.
        lengths_B: valid positions of each sequence, 0 … N.
        clusters: C, 1 … 1024.
        iterations: L ≥ 1 assignments; fewer are made when nothing moves any more.
        bits: width of a hash, 1 … 63.

    Returns:
        [B, H, N] int32, cluster of each position, 0 … min(C, n) − 1; −1 at padding.
    """
    if not torch.compiler.is_compiling():
        require(hashes_BHN.device.type)
    return torch.ops.attention_ext.hamming_kmeans(hashes_BHN, lengths_B, clusters, iterations, bits)


def register() -> None:
    """Tell PyTorch the output's shape; called once, when the library is loaded."""

    @torch.library.register_fake("attention_ext::hamming_kmeans")
    def _(hashes: Tensor, lengths: Tensor, clusters: int, iterations: int, bits: int) -> Tensor:
        return hashes.new_empty(hashes.shape, dtype=torch.int32)
