"""Groupings of queries into clusters: by sign hashes, or in the metric of the keys."""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.backend import Operators
from asr.attention.hashing import LARGEST_HEAD, RandomDirections, hash_planes
from asr.attention.spec import COUNT
from asr.config import option

# With fewer clusters, better groups cost less and gain more (attention_ext/key_grouping/NOTES.md).
FEW = 50
HASH, KEYS = ("grouping", "hash"), ("grouping", "keys")


def grouping_kind(default: str) -> Any:
    """Return the field that selects what a grouping compares queries by."""
    return option(
        default,
        help="clusters of queries with similar sign hashes (hash), or with similar logits over the keys "
        "(keys)",
        affects="result",
        choices=("hash", "keys"),
    )


@dataclass
class GroupingOptions:
    """Clusters of queries, and how they are formed."""

    clusters: int = option(
        100, help="query clusters, C", affects="result", letter="C", minimum=1, maximum=COUNT
    )
    grouping: str = grouping_kind("hash")
    bits: int = option(63, help="hash bits", affects="result", only=HASH, minimum=1, maximum=63)
    rank: int = option(
        0,
        help=f"number of directions of the keys to consider; 0: 8, or 12 with fewer than {FEW} clusters",
        affects="result",
        only=KEYS,
        maximum=256,
    )
    iterations: int = option(
        0,
        help="Lloyd iterations of K-means, L; 0: 10 with grouping=hash, else 3, or 4 with fewer than "
        f"{FEW} clusters",
        affects="result",
        maximum=1000,
    )
    planes: str = hash_planes(only=HASH)
    bias: bool = option(False, help="hash planes with an offset from the origin", affects="result", only=HASH)
    center: bool = option(
        False, help="subtract the mean of the queries before hashing", affects="result", only=HASH
    )

    def __post_init__(self) -> None:
        """Fill in the iterations for hashes, which don't depend on the number of clusters."""
        if self.grouping == "hash" and not self.iterations:
            self.iterations = 10


class HashGrouping(nn.Module):
    """Clusters of queries with similar sign hashes: K-means in Hamming space.

    *Fast Transformers with Clustered Attention* §3.2.2. The hash planes are a buffer saved with the model, so
    that queries are clustered alike in training, in evaluation and on any machine. The paper's code draws
    planes and biases in every forward pass; `planes=fresh,bias=true` does so in training.

    With `bias`, bit p is the sign of x·plane_p + b_p instead of x·plane_p. With `center`, the mean of a
    head's valid queries is subtracted first: distances between queries don't change, but without it, the
    hashes of queries far from the origin hardly differ.

    Attributes:
        hashed: number of leading dimensions of the queries that are hashed; None: all.
    """

    needs_keys = False
    hashed: int | None = None

    def __init__(self, options: GroupingOptions) -> None:
        super().__init__()
        self.clusters, self.bits, self.iterations = options.clusters, options.bits, options.iterations
        self.bias, self.center = options.bias, options.center
        self.planes_PD = RandomDirections(
            options.bits, LARGEST_HEAD, planes=options.planes, bias=options.bias
        )

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
    """Clusters of queries with similar logits over the keys: K-means in the metric of the keys.

    See `attention_ext.key_grouping`.
    """

    needs_keys = True

    def __init__(self, options: GroupingOptions) -> None:
        super().__init__()
        self.clusters = options.clusters
        self.rank = options.rank or (12 if self.clusters < FEW else 8)
        self.iterations = options.iterations or (4 if self.clusters < FEW else 3)

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
