"""Groupings of queries into clusters: by sign hashes, or in the metric of the keys."""

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.backend import Operators
from asr.attention.hashing import LARGEST_HEAD, PLANES, RandomDirections
from asr.attention.spec import Option

# With fewer clusters, better groups cost little and gain more (attention_ext/key_grouping/NOTES.md).
FEW = 50
HASH, KEYS = ("grouping", "hash"), ("grouping", "keys")
GROUPING = (
    Option(
        "grouping",
        "hash",
        ("hash", "keys"),
        "clusters of queries with similar sign hashes (hash), or with similar logits over the keys (keys)",
    ),
    Option("bits", 63, range(1, 64), "hash bits", only=HASH),
    Option("iterations", 10, range(1, 1_001), "Lloyd iterations of K-means, L", only=HASH),
    replace(PLANES, only=HASH),
    Option("bias", False, (False, True), "hash planes with an offset from the origin", only=HASH),
    Option("center", False, (False, True), "subtract the mean of the queries before hashing", only=HASH),
    Option(
        "rank",
        0,
        range(257),
        f"directions of the keys that count; 0: 8, or 12 with fewer than {FEW} clusters",
        only=KEYS,
    ),
    Option(
        "iterations",
        0,
        range(1_001),
        f"Lloyd iterations of K-means, L; 0: 3, or 4 with fewer than {FEW} clusters",
        only=KEYS,
    ),
)


class HashGrouping(nn.Module):
    """Clusters of queries with similar sign hashes: K-means in Hamming space.

    *Fast Transformers with Clustered Attention* §3.2.2. The hash planes are a buffer saved with the model, so
    that queries are clustered alike in training, in evaluation and on any machine. The paper's code draws
    planes and biases in every forward pass; `planes=fresh,bias=true` does so in training.

    Args:
        clusters: C.
        bits: hash bits, 1 … 63.
        iterations: iterations of Lloyd's algorithm, L.
        planes: `fixed`, `layer` or `fresh`, see `RandomDirections`.
        bias: whether bit p is the sign of x·plane_p + b_p instead of x·plane_p.
        center: whether the mean of the valid queries of a head is subtracted first. Distances between queries
            don't change, but hashes of queries far from the origin hardly differ.

    Attributes:
        hashed: number of leading dimensions of the queries that are hashed; None: all.
    """

    needs_keys = False
    hashed: int | None = None

    def __init__(
        self, clusters: int, bits: int, iterations: int, planes: str, bias: bool, center: bool
    ) -> None:
        super().__init__()
        self.clusters, self.bits, self.iterations = clusters, bits, iterations
        self.bias, self.center = bias, center
        self.planes_PD = RandomDirections(bits, LARGEST_HEAD, planes=planes, bias=bias)

    def forward(
        self,
        q_BHND: Tensor,
        k_BHSD: Tensor | None,
        query_lengths_B: Tensor,
        key_lengths_B: Tensor | None,
        operators: Operators,
    ) -> Tensor:
        """Return the cluster of every query, [B, H, N] int32; −1 at padding. Backends agree bit for bit."""
        q_BHND = q_BHND[..., : self.hashed]
        planes_PD = self.planes_PD(q_BHND.shape[-1])
        x_BHND = q_BHND.detach()
        if self.center:
            x_BHND = operators.subtract_mean(x_BHND, query_lengths_B)
        if self.bias:
            x_BHND = F.pad(x_BHND, (0, 1), value=1.0)
        hashes_BHN = operators.hash_sign(x_BHND, planes_PD)
        return operators.hamming_kmeans(
            hashes_BHN, query_lengths_B, self.clusters, self.iterations, self.bits
        )


class KeyGrouping(nn.Module):
    """Clusters of queries whose logits differ little over the keys: K-means in the metric of the keys.

    See `attention_ext.key_grouping`.

    Args:
        clusters: C.
        rank: directions of the keys that count, at most D; 0: 8, or 12 with fewer than `FEW` clusters.
        iterations: iterations of Lloyd's algorithm, L; 0: 3, or 4 with fewer than `FEW` clusters.
    """

    needs_keys = True

    def __init__(self, clusters: int, rank: int, iterations: int) -> None:
        super().__init__()
        self.clusters = clusters
        self.rank = rank or (12 if clusters < FEW else 8)
        self.iterations = iterations or (4 if clusters < FEW else 3)

    def forward(
        self,
        q_BHND: Tensor,
        k_BHSD: Tensor,
        query_lengths_B: Tensor,
        key_lengths_B: Tensor,
        operators: Operators,
    ) -> Tensor:
        """Return the cluster of every query, [B, H, N] int32; −1 at padding."""
        sizes = self.clusters, self.rank, self.iterations
        return operators.key_groups(q_BHND.detach(), k_BHSD.detach(), query_lengths_B, key_lengths_B, *sizes)


GROUPINGS: dict[str, type[HashGrouping] | type[KeyGrouping]] = {"hash": HashGrouping, "keys": KeyGrouping}
