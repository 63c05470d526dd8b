"""Shared by the kernels' tests: supported instruction sets, random problems, poisoned padding."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from attention_ext import why_unavailable
from attention_ext.hashing.reference import hash_sign
from attention_ext.kmeans.reference import hamming_kmeans
from attention_ext.library import instruction_set

needs_kernels = pytest.mark.skipif(why_unavailable("cpu") is not None, reason=str(why_unavailable("cpu")))


def instruction_sets() -> list[str]:
    """Return the instruction sets that this machine supports."""
    if why_unavailable("cpu") is not None:
        return []
    names = []
    for name in ("generic", "avx2", "avx512"):
        try:
            names.append(instruction_set(name))
        except RuntimeError:
            continue
    instruction_set()
    return names


@dataclass
class Inputs:
    """Queries, keys and values of one call and the gradient of its output, in float64."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor

    def inputs(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v in the given type, as autograd leaves."""
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in (self.q, self.k, self.v))
        return q, k, v


@dataclass
class Problem(Inputs):
    """A call of clustered attention."""

    groups: Tensor
    query_lengths: Tensor
    key_lengths: Tensor
    clusters: int


def run(attend: Callable[..., Tensor], p: Inputs, dtype: torch.dtype) -> list[Tensor]:
    """Return the output and the gradients of q, k and v."""
    inputs = p.inputs(dtype)
    out = attend(*inputs)
    out.backward(p.grad.to(dtype))
    return [out.detach(), *(x.grad for x in inputs if x.grad is not None)]


def error(found: Tensor, exact: Tensor) -> float:
    """Return the relative error in the Frobenius norm."""
    assert found.isfinite().all()
    return float((found.double() - exact).norm() / exact.norm().clamp(min=1e-30))


def problem(
    B: int, H: int, N: int, S: int, D: int, E: int, C: int,
    query_lengths: list[int] | None = None, key_lengths: list[int] | None = None, seed: int = 0,
) -> Problem:  # fmt: skip
    """Return random inputs, grouped by the reference."""
    g = torch.Generator().manual_seed(seed)
    q, k, v, grad = (
        torch.randn(B, H, *size, generator=g, dtype=torch.float64)
        for size in ((N, D), (S, D), (S, E), (N, E))
    )
    query_lengths_B = torch.tensor(query_lengths or [N] * B)
    key_lengths_B = torch.tensor(key_lengths or [S] * B)
    hashes = hash_sign(q, torch.randn(31, D, generator=g))
    groups = hamming_kmeans(hashes, query_lengths_B, C, 4, 31)
    return Problem(q, k, v, grad, groups, query_lengths_B, key_lengths_B, C)


def poison(x: Tensor, lengths: Tensor) -> Tensor:
    """Fill positions past the lengths with NaN."""
    padding = torch.arange(x.shape[2]) >= lengths[:, None]
    return x.masked_fill(padding[:, None, :, None], torch.nan)
