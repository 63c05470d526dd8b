"""Grouping of queries: sign hashes, then K-means in Hamming space; no randomness at run time."""

import torch
from torch import Tensor, nn

from asr.attention.backend import Operators
from asr.errors import UserError

LARGEST_HEAD = 256
SEED = 2020


def fixed_normal(*shape: int) -> Tensor:
    """Return standard normal numbers, the same on every call and machine; no global generator is touched."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED))


def slice_head(buffer: Tensor, dim: int, axis: int) -> Tensor:
    """Return the first D entries of a buffer made for the largest head.

    Raises:
        UserError: D is too large.
    """
    if dim > LARGEST_HEAD:
        raise UserError(f"head_dim={dim}: hashing mechanisms take heads of at most {LARGEST_HEAD}")
    return buffer.narrow(axis, 0, dim)


class QueryClusters(nn.Module):
    """Queries to clusters, *Fast Transformers with Clustered Attention* §3.2.2.

    The hash planes are a buffer, saved with the model: training, evaluation and other machines group alike.

    Args:
        clusters: C.
        bits: hash bits, 1 … 63.
        iterations: L of Lloyd's algorithm.
    """

    planes_PD: Tensor

    def __init__(self, clusters: int, bits: int, iterations: int) -> None:
        super().__init__()
        self.clusters, self.bits, self.iterations = clusters, bits, iterations
        self.register_buffer("planes_PD", fixed_normal(bits, LARGEST_HEAD))

    def forward(self, q_BHND: Tensor, lengths_B: Tensor, operators: Operators) -> Tensor:
        """Return the cluster of every query, [B, H, N] int32; −1 at padding. Backends agree bit for bit."""
        planes_PD = slice_head(self.planes_PD, q_BHND.shape[-1], axis=1)
        hashes_BHN = operators.hash_sign(q_BHND.detach(), planes_PD)
        return operators.hamming_kmeans(hashes_BHN, lengths_B, self.clusters, self.iterations, self.bits)
