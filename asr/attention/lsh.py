"""LSH attention (Reformer): positions whose vectors share a hash bucket attend to each other."""

import torch
from torch import Tensor

import attention_ext
from asr.attention.hashing import LARGEST_HEAD, PLANES, RandomDirections
from asr.attention.softmax import SoftmaxMechanism, filled_lengths, with_bias
from asr.attention.spec import COUNT, Option, Schema
from attention_ext.lsh_attention.reference import lsh_weights
from attention_ext.tensors import compute_dtype


class LSHAttention(SoftmaxMechanism):
    """Positions in the same hash bucket attend to each other; keys are the normalised queries.

    Each round hashes and sorts the positions, which attend within chunks of the sorted sequence.
    *Reformer* §2; see `attention_ext.lsh_attention`.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        hashes: hash rounds, R.
        chunk: sorted positions in a chunk, m.
        buckets: hash buckets, an even number.
        planes: random rotations: `fixed`, `layer` or `fresh`, see `RandomDirections`.
        rounds: `merge`: softmax over the keys seen in any round, as in the paper; `mean`: mean of the rounds'
            outputs, as in pytorch-fast-transformers (where each position sees itself, too).
    """

    schema = Schema(
        "R",
        Option("hashes", 4, range(1, 65), "hash rounds, R"),
        (
            Option("chunk", 32, COUNT, "sorted positions in a chunk"),
            Option("buckets", 64, range(2, 65_537, 2), "hash buckets"),
            PLANES,
            Option(
                "rounds",
                "merge",
                ("merge", "mean"),
                "merge: one softmax over all rounds; mean: mean of the rounds' outputs",
            ),
        ),
    )
    source = "[Kitaev et al. 2020, Reformer](https://arxiv.org/abs/2001.04451)"
    time, memory = "N·R·chunk", "N·R·chunk (native: N·R)"
    needs_shared_keys = True
    cross_attention = False

    def __init__(
        self,
        name: str,
        backend: str,
        dropout: float,
        hashes: int,
        chunk: int,
        buckets: int,
        planes: str,
        rounds: str,
    ) -> None:
        reasons = {"cpu": attention_ext.why_unavailable("cpu"), "cuda": "this mechanism has no CUDA kernels"}
        super().__init__(name, backend, dropout, why_not_native=reasons)
        self.chunk, self.rounds = chunk, rounds
        self.rotations_RDF = RandomDirections(hashes, LARGEST_HEAD, buckets // 2, planes=planes)
        self.operators = self.backend.operators()

    @torch.no_grad()
    def hash(self, k: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return each position's bucket in each round, [B, H, R, N] int32; backends agree bit for bit."""
        operators = self.operators[self.backend.on(k.device.type)]
        return operators.lsh_buckets(k.detach(), self.rotations_RDF(k.shape[-1]), filled_lengths(lengths, k))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """See `QueryKeyMechanism`."""
        lengths_B = filled_lengths(query_lengths, q)
        return self._attend_hashed(q, k, v, self.hash(k, lengths_B), lengths_B)

    def attend_biased(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_lengths: Tensor | None,
        key_lengths: Tensor | None,
        bias_BS: Tensor,
        finite_padding: bool,
    ) -> Tensor:
        """See `QueryKeyMechanism`; the hashes don't see the addend."""
        lengths_B = filled_lengths(query_lengths, q)
        return self._attend_hashed(*with_bias(q, k, bias_BS), v, self.hash(k, lengths_B), lengths_B)

    def _attend_hashed(
        self, q: Tensor, k: Tensor, v: Tensor, buckets_BHRN: Tensor, lengths_B: Tensor
    ) -> Tensor:
        operators = self.operators[self.backend.on(q.device.type)]
        options = {"chunk": self.chunk, "dropout": self.active_dropout}
        if self.rounds == "mean":  # in half precision, the mean alone is rounded
            q, k, v = (x.to(compute_dtype(x)) for x in (q, k, v))
        outputs = [
            operators.lsh_attention(q, k, v, part, lengths_B, **options) for part in self._parts(buckets_BHRN)
        ]
        return outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(0)

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """See `QueryKeyMechanism`."""
        parts = self._parts(self.hash(k, key_lengths))
        return torch.stack([lsh_weights(q, k, part, key_lengths, self.chunk) for part in parts]).mean(0)

    def _parts(self, buckets_BHRN: Tensor) -> tuple[Tensor, ...]:
        """Return the rounds that share a softmax."""
        return buckets_BHRN.split(1, dim=2) if self.rounds == "mean" else (buckets_BHRN,)
