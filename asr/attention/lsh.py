"""LSH attention (Reformer): positions whose vectors share a hash bucket attend to each other."""

import torch
from torch import Tensor

import attention_ext
from asr.attention.hashing import LARGEST_HEAD, fixed_normal, slice_head
from asr.attention.softmax import SoftmaxMechanism, filled_lengths
from attention_ext.lsh_attention.reference import lsh_weights


class LSHAttention(SoftmaxMechanism):
    """Rounds of hashing, sorting and attending within chunks, with the normalised queries as keys.

    *Reformer* §2; see `attention_ext.lsh_attention`.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        rounds: hash rounds, R.
        chunk: sorted positions in a chunk, m.
        buckets: hash buckets, an even number.
    """

    needs_shared_keys = True
    cross_attention = False
    rotations_RDF: Tensor

    def __init__(
        self, name: str, backend: str, dropout: float, rounds: int, chunk: int, buckets: int
    ) -> None:
        reasons = {
            "cpu": attention_ext.why_unavailable("cpu"),
            "cuda": "this mechanism has no CUDA kernels",
        }
        super().__init__(name, backend, dropout, why_not_native=reasons)
        self.chunk = chunk
        self.register_buffer("rotations_RDF", fixed_normal(rounds, LARGEST_HEAD, buckets // 2))
        self.operators = self.backend.operators()

    @torch.no_grad()
    def hash(self, k: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return each position's bucket in each round, [B, H, R, N] int32; backends agree bit for bit."""
        operators = self.operators[self.backend.on(k.device.type)]
        rotations_RDF = slice_head(self.rotations_RDF, k.shape[-1], axis=1)
        return operators.lsh_buckets(k.detach(), rotations_RDF, filled_lengths(lengths, k))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """Compute `forward`."""
        lengths_B = filled_lengths(query_lengths, q)
        buckets_BHRN = self.hash(k, lengths_B)
        operators = self.operators[self.backend.on(q.device.type)]
        return operators.lsh_attention(
            q, k, v, buckets_BHRN, lengths_B, chunk=self.chunk, dropout=self.active_dropout
        )

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """Compute `weights`."""
        return lsh_weights(q, k, self.hash(k, key_lengths), key_lengths, self.chunk)
