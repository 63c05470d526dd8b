"""Shared by the kernels' tests: supported instruction sets, random problems, poisoned padding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch use some threads instead of one."""
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)


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


Attention = Callable[..., Tensor]


def check_accuracy(native: Attention, reference: Attention, p: Inputs, dtype: torch.dtype) -> None:
    """Compare output and gradients with float64, and errors with those of the reference in the same type."""
    exact = run(reference, p, torch.float64)
    theirs = run(reference, p, dtype)
    most = 2 if dtype == torch.float32 else 1.5
    for found, other, truth in zip(run(native, p, dtype), theirs, exact, strict=True):
        assert found.dtype == dtype
        assert error(found, truth) <= (1e-12 if dtype == torch.float64 else most * error(other, truth))


def check_views(attend: Attention, p: Inputs) -> None:
    """Strided input must give the same bits as contiguous input."""
    expected = run(attend, p, torch.float32)
    p.q, p.k, p.v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (p.q, p.k, p.v))
    p.grad = p.grad.mT.contiguous().mT
    check_same_bits(run(attend, p, torch.float32), expected)


def check_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def check_threads(attend: Attention, p: Inputs) -> None:
    expected = run(attend, p, torch.float32)
    for count in (2, 3):
        with threads(count):
            check_same_bits(run(attend, p, torch.float32), expected)


def check_large_logits(native: Attention, reference: Attention, p: Inputs) -> None:
    p.q, p.k = p.q * 100, p.k * 100
    exact = run(reference, p, torch.float64)
    for found, truth in zip(run(native, p, torch.float64), exact, strict=True):
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9)
    assert all(x.isfinite().all() for x in run(native, p, torch.float32))


def check_dropout_gradient(attend: Attention, p: Inputs) -> None:
    def seeded(*inputs: Tensor) -> Tensor:
        torch.manual_seed(11)
        return attend(*inputs)

    assert torch.autograd.gradcheck(seeded, p.inputs(torch.float64))


def poison(x: Tensor, lengths: Tensor) -> Tensor:
    """Fill positions past the lengths with NaN."""
    padding = torch.arange(x.shape[2]) >= lengths[:, None]
    return x.masked_fill(padding[:, None, :, None], torch.nan)


def padded(p: Problem, dtype: torch.dtype) -> list[Tensor]:
    """Return q, k and v with NaN as padding."""
    lengths = (p.query_lengths, p.key_lengths, p.key_lengths)
    return [poison(x, n).to(dtype) for x, n in zip((p.q, p.k, p.v), lengths, strict=True)]
