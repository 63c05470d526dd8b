"""Random calls of the five attention kernels, native or reference, with the same settings by default."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from kernel_cases import Attention, Inputs, poison, problem
from torch import Tensor

from attention_ext.clustered_attention import native as clustered_native
from attention_ext.clustered_attention import reference as clustered_reference
from attention_ext.improved_clustered_attention import native as improved_native
from attention_ext.improved_clustered_attention import reference as improved_reference
from attention_ext.local_attention import native as local_native
from attention_ext.local_attention import reference as local_reference
from attention_ext.lsh_attention import native as lsh_native
from attention_ext.lsh_attention import reference as lsh_reference
from attention_ext.near_attention import native as near_native
from attention_ext.near_attention import reference as near_reference

KERNELS: dict[str, tuple[Attention, Attention, dict[str, int]]] = {
    "clustered": (
        clustered_native.clustered_attention,
        clustered_reference.clustered_attention,
        {"clusters": 6},
    ),
    "improved": (
        improved_native.improved_clustered_attention,
        improved_reference.improved_clustered_attention,
        {"clusters": 6, "topk": 8},
    ),
    "lsh": (lsh_native.lsh_attention, lsh_reference.lsh_attention, {"rounds": 2, "chunk": 8}),
    "local": (
        local_native.local_attention,
        local_reference.local_attention,
        {"left": 8, "right": 5, "chunk": 1, "first": 2},
    ),
    "near": (
        near_native.near_attention,
        near_reference.near_attention,
        {"clusters": 6, "topk": 8, "window": 3},
    ),
}


@dataclass
class Call(Inputs):
    """A call of a kernel.

    Attributes:
        kernel: key of `KERNELS`.
        lengths: valid queries and keys, [B] each.
        others: arguments after q, k and v, in the order of function and operator.
    """

    kernel: str
    lengths: tuple[Tensor, Tensor]
    others: list[Any]

    def native(self, **options: Any) -> Attention:
        """Return the kernel as a function of q, k and v."""
        return lambda *inputs: KERNELS[self.kernel][0](*inputs, *self.others, **options)

    def reference(self) -> Attention:
        """Return the reference as a function of q, k and v."""
        return lambda *inputs: KERNELS[self.kernel][1](*inputs, *self.others)

    def poisoned(self) -> "Call":
        """Return the call with NaN in the padding of q, k, v and the gradient, and arbitrary groups there."""
        queries, keys = self.lengths
        padding = torch.arange(self.q.shape[2]) >= queries[:, None]
        others = [
            x.masked_fill(padding.view(len(x), *[1] * (x.dim() - 2), -1), 2**30) if _by_position(x) else x
            for x in self.others
        ]
        q, k, v, grad = (
            poison(x, n) for x, n in ((self.q, queries), (self.k, keys), (self.v, keys), (self.grad, queries))
        )
        return Call(q, k, v, grad, self.kernel, self.lengths, others)

    def last_alone(self) -> "Call":
        """Return the call for the last sequence of self-attention without padding."""
        n = int(self.lengths[0][-1])
        others = [
            x[-1:, ..., :n] if _by_position(x) else x[-1:] if isinstance(x, Tensor) else x
            for x in self.others
        ]
        vectors = (x[-1:, :, :n] for x in (self.q, self.k, self.v, self.grad))
        return Call(*vectors, self.kernel, (self.lengths[0][-1:], self.lengths[1][-1:]), others)

    def strided(self) -> "Call":
        """Return the same values in other memory layouts."""
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (self.q, self.k, self.v))
        return replace(self, q=q, k=k, v=v, grad=self.grad.mT.contiguous().mT)


def _by_position(x: Any) -> bool:
    """Return whether x holds groups or buckets."""
    return isinstance(x, Tensor) and x.dim() > 1


def make(
    kernel: str, B: int, H: int, N: int, D: int, E: int, lengths: list[int] | None = None,
    S: int = 0, key_lengths: list[int] | None = None, **settings: int,
) -> Call:  # fmt: skip
    """Return a random call. S and the lengths of keys are those of queries, unless given."""
    chosen = KERNELS[kernel][2] | settings
    p = problem(
        B, H, N, S or N, D, E, chosen.get("clusters", 1), lengths, key_lengths or (None if S else lengths)
    )
    others: list[Any]
    if kernel == "lsh":
        rotations = torch.randn(chosen["rounds"], D, 4, generator=torch.Generator().manual_seed(1))
        others = [
            lsh_reference.lsh_buckets(p.k, rotations, p.query_lengths),
            p.query_lengths,
            chosen["chunk"],
        ]
    elif kernel == "local":
        others = [p.query_lengths, *chosen.values()]
    elif kernel == "near":
        others = [p.groups, p.query_lengths, *chosen.values()]
    else:
        others = [p.groups, p.query_lengths, p.key_lengths, *chosen.values()]
    return Call(p.q, p.k, p.v, p.grad, kernel, (p.query_lengths, p.key_lengths), others)
