"""Groupings of queries into clusters: by sign hashes, or by what the keys can tell apart."""

from torch import Tensor, nn

from asr.attention.backend import Operators
from asr.attention.hashing import LARGEST_HEAD, fixed_normal, slice_head


class HashGrouping(nn.Module):
    """Clusters of queries with similar sign hashes: K-means in Hamming space.

    *Fast Transformers with Clustered Attention* §3.2.2. The hash planes are a buffer saved with the model, so
    that queries are clustered alike in training, in evaluation and on any machine.

    Args:
        clusters: C.
        bits: hash bits, 1 … 63.
        iterations: iterations of Lloyd's algorithm, L.
    """

    needs_keys = False
    planes_PD: Tensor

    def __init__(self, clusters: int, bits: int, iterations: int) -> None:
        super().__init__()
        self.clusters, self.bits, self.iterations = clusters, bits, iterations
        self.register_buffer("planes_PD", fixed_normal(bits, LARGEST_HEAD))

    def forward(
        self,
        q_BHND: Tensor,
        k_BHSD: Tensor | None,
        query_lengths_B: Tensor,
        key_lengths_B: Tensor | None,
        operators: Operators,
    ) -> Tensor:
        """Return the cluster of every query, [B, H, N] int32; −1 at padding. Backends agree bit for bit."""
        planes_PD = slice_head(self.planes_PD, q_BHND.shape[-1], axis=1)
        hashes_BHN = operators.hash_sign(q_BHND.detach(), planes_PD)
        return operators.hamming_kmeans(
            hashes_BHN, query_lengths_B, self.clusters, self.iterations, self.bits
        )


class KeyGrouping(nn.Module):
    """Clusters of queries whose logits differ little over the keys: K-means in the metric of the keys.

    See `attention_ext.key_grouping`.

    Args:
        clusters: C.
        rank: directions of the keys that count, at most D.
        iterations: iterations of Lloyd's algorithm, L.
    """

    needs_keys = True

    def __init__(self, clusters: int, rank: int, iterations: int) -> None:
        super().__init__()
        self.clusters, self.rank, self.iterations = clusters, rank, iterations

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
