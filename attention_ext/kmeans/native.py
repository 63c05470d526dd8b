"""K-means in Hamming space on the compiled kernels."""

import functools

import torch
from torch import Tensor

from attention_ext.library import require


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
    if not torch.compiler.is_compiling():
        require(hashes_BHN.device.type)
        register()
    return torch.ops.attention_ext.hamming_kmeans(hashes_BHN, lengths_B, clusters, iterations, bits)


@functools.cache
def register() -> None:
    """Register the output's shape with PyTorch."""

    @torch.library.register_fake("attention_ext::hamming_kmeans")
    def _(hashes: Tensor, lengths: Tensor, clusters: int, iterations: int, bits: int) -> Tensor:
        return hashes.new_empty(hashes.shape, dtype=torch.int32)
