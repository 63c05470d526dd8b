"""LSH attention (Reformer): positions whose vectors share a hash bucket attend to each other."""

from dataclasses import dataclass

import torch
from torch import Tensor

import attention_ext
from asr.attention.hashing import LARGEST_HEAD, RandomDirections, hash_planes
from asr.attention.softmax import SoftmaxMechanism, filled_lengths, with_bias
from asr.attention.spec import COUNT
from asr.config import option
from attention_ext.lsh_attention.reference import lsh_weights
from attention_ext.tensors import compute_dtype


@dataclass
class LSHOptions:
    """Hash rounds R, chunks and buckets."""

    hashes: int = option(4, help="hash rounds, R", affects="result", letter="R", minimum=1, maximum=64)
    chunk: int = option(32, help="sorted positions in a chunk", affects="result", minimum=1, maximum=COUNT)
    buckets: int = option(64, help="hash buckets", affects="result", minimum=2, maximum=COUNT, step=2)
    planes: str = hash_planes()
    rounds: str = option(
        "merge",
        help="merge: one softmax over all rounds; mean: mean of the rounds' outputs",
        affects="result",
        choices=("merge", "mean"),
    )


class LSHAttention(SoftmaxMechanism):
    """Positions in the same hash bucket attend to each other; keys are the normalised queries.

    Each round hashes and sorts the positions, which attend within chunks of the sorted sequence: *Reformer*
    §2; see `attention_ext.lsh_attention`.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        options: rounds, chunks and buckets. `merge` is the paper's softmax over the keys seen in any round;
            `mean` is pytorch-fast-transformers' mean over rounds (where each position also sees itself).
    """

    options = LSHOptions
    source = "[Kitaev et al. 2020, Reformer](https://arxiv.org/abs/2001.04451)"
    time, memory = "N·R·chunk", "N·R·chunk (native: N·R)"
    needs_shared_keys = True
    cross_attention = False

    def __init__(self, name: str, backend: str, dropout: float, options: LSHOptions) -> None:
        reasons = {"cpu": attention_ext.why_unavailable("cpu"), "cuda": "this mechanism has no CUDA kernels"}
        super().__init__(name, backend, dropout, why_not_native=reasons)
        self.chunk, self.rounds = options.chunk, options.rounds
        self.rotations_RDF = RandomDirections(
            options.hashes, LARGEST_HEAD, options.buckets // 2, planes=options.planes
        )
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
        """See `QueryKeyMechanism`; the hashes ignore the addend."""
        lengths_B = filled_lengths(query_lengths, q)
        return self._attend_hashed(*with_bias(q, k, bias_BS), v, self.hash(k, lengths_B), lengths_B)

    def _attend_hashed(
        self, q: Tensor, k: Tensor, v: Tensor, buckets_BHRN: Tensor, lengths_B: Tensor
    ) -> Tensor:
        operators = self.operators[self.backend.on(q.device.type)]
        options = {"chunk": self.chunk, "dropout": self.active_dropout}
        if self.rounds == "mean":  # in half precision, only the mean is rounded
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
