"""Shared by the kernels' tests: supported instruction sets, random problems, poisoned padding."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, tensor, zeros
from torch.profiler import ProfilerActivity, profile

from attention_ext import why_unavailable
from attention_ext.hashing.reference import hash_sign
from attention_ext.kmeans.reference import hamming_kmeans
from attention_ext.library import INSTRUCTION_SETS, instruction_set

needs_kernels = pytest.mark.skipif(why_unavailable("cpu") is not None, reason=str(why_unavailable("cpu")))


def instruction_sets() -> list[str]:
    """Return the instruction sets that this machine supports."""
    if why_unavailable("cpu") is not None:
        return []
    names = []
    for name in INSTRUCTION_SETS:
        try:
            names.append(instruction_set(name))
        except RuntimeError:
            continue
    instruction_set()
    return names


Attention = Callable[..., Tensor]


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


def operators_of(call: Callable[[], object]) -> set[str]:
    """Return the names of all PyTorch operators that a call runs, those inside other operators included."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        call()
    return {event.key for event in profiled.key_averages()}


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


def of_one_sequence(p: Problem) -> Problem:
    """Return a problem of self-attention: the first positions, as many as there are queries and keys."""
    n = min(p.q.shape[2], p.k.shape[2])
    q, k, v, grad, groups = (x[:, :, :n] for x in (p.q, p.k, p.v, p.grad, p.groups))
    lengths = torch.minimum(p.query_lengths, p.key_lengths)
    return Problem(q, k, v, grad, groups, lengths, lengths, p.clusters)


def check_accuracy(native: Attention, reference: Attention, p: Inputs, dtype: torch.dtype) -> None:
    """Compare output and gradients with float64, and errors with those of the reference in the same type."""
    exact = run(reference, p, torch.float64)
    theirs = run(reference, p, dtype)
    most = 2 if dtype == torch.float32 else 1.5
    for found, other, truth in zip(run(native, p, dtype), theirs, exact, strict=True):
        assert found.dtype == dtype
        assert error(found, truth) <= (1e-12 if dtype == torch.float64 else most * error(other, truth))


def check_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def poison(x: Tensor, lengths: Tensor) -> Tensor:
    """Fill positions past the lengths with NaN."""
    padding = torch.arange(x.shape[2]) >= lengths[:, None]
    return x.masked_fill(padding[:, None, :, None], torch.nan)


def padded(p: Problem, dtype: torch.dtype) -> list[Tensor]:
    """Return q, k and v with NaN as padding."""
    lengths = (p.query_lengths, p.key_lengths, p.key_lengths)
    return [poison(x, n).to(dtype) for x, n in zip((p.q, p.k, p.v), lengths, strict=True)]


@functools.cache
def valid_calls(ops: Any) -> dict[str, dict[str, Any]]:
    """Return the arguments of a small valid call of every operator that the library has, by name.

    Tests that change an argument merge it into a new dictionary.
    """
    p = problem(2, 2, 9, 9, 4, 3, 3)
    q, k, v, grad = (x.float() for x in (p.q, p.k, p.v, p.grad))
    lengths = {"query_lengths": p.query_lengths, "key_lengths": p.key_lengths}
    dropout = {"dropout": 0.0, "seed": None}
    vectors = {"q": q, "k": k, "v": v}
    clustered = {**vectors, "groups": p.groups, **lengths, "clusters": 3}
    _, *names = ["out", "softmax", "values", "kept"]
    saved = dict(
        zip(names, ops.clustered_attention(**clustered, **dropout, keep_weights=True)[1:], strict=True)
    )
    improved = {**clustered, "topk": 2, **dropout, "keep_weights": True}
    names = ["out", "softmax", "values", "mass", "top", "kept"]
    saved_improved = dict(zip(names, ops.improved_clustered_attention(**improved), strict=True))
    near = {**vectors, "groups": p.groups, "lengths": p.query_lengths, "clusters": 3, "window": 2, **dropout}
    names = ["out", "softmax", "far", "top", "kept"]
    saved_near = dict(zip(names, ops.near_attention(**near, topk=2, keep_weights=True), strict=True))
    return {
        "hash_sign": {"x": q, "planes": torch.randn(5, 4)},
        "subtract_mean": {"x": q, "lengths": p.query_lengths},
        "hamming_kmeans": {
            "hashes": torch.arange(36).view(2, 2, 9),
            "lengths": p.query_lengths,
            "clusters": 3,
            "iterations": 2,
            "bits": 6,
        },
        "key_groups": {"q": q, "k": k, **lengths, "clusters": 3, "rank": 2, "iterations": 2},
        "clustered_attention": {**clustered, **dropout},
        "clustered_attention_backward": {"grad": grad, **clustered, **dropout, **saved},
        "improved_clustered_attention": improved,
        "improved_clustered_attention_backward": {"grad": grad, **clustered, **dropout, **saved_improved},
        "near_attention": {**near, "topk": 2},
        "near_attention_backward": {"grad": grad, **near, **saved_near},
    }


@functools.cache
def valid_cpu_calls(ops: Any) -> dict[str, dict[str, Any]]:
    """The same for the operators of LSH and local attention, which CUDA lacks."""
    clustered = valid_calls(ops)["clustered_attention_backward"]
    q = clustered["q"]
    vectors = {"q": q, "k": q, "v": clustered["v"], "lengths": clustered["query_lengths"]}
    common, local = {**vectors, "chunk": 2}, {**vectors, "left": 2, "right": 1, "chunk": 2, "globals": 1}
    dropout = {"dropout": 0.0, "seed": None}
    saved_local = dict(zip(["out", "softmax"], ops.local_attention(**local, **dropout), strict=True))
    buckets = torch.arange(36, dtype=torch.int32).view(2, 2, 1, 9)
    names = ["out", "softmax", "order"]
    saved = dict(zip(names, ops.lsh_attention(**common, buckets=buckets, **dropout), strict=True))
    return {
        "lsh_buckets": {"x": q, "rotations": torch.randn(1, 4, 2), "lengths": common["lengths"]},
        "lsh_attention": {**common, "buckets": buckets, **dropout},
        "lsh_attention_backward": {"grad": clustered["grad"], **common, **dropout, **saved},
        "local_attention": {**local, **dropout},
        "local_attention_backward": {
            "grad": clustered["grad"],
            **local,
            **dropout,
            "bias": None,
            **saved_local,
        },
    }


def without_memory(*shape: int) -> Tensor:
    """Return a tensor whose memory was freed."""
    x = zeros(shape)
    x.untyped_storage().resize_(0)
    return x


HUGE = zeros(1).expand(1 << 32, 1 << 10, 9, 4)  # 2^32 · 2^10 heads; sums of sizes overflow
EMPTY_HUGE = zeros(1 << 61, 0, 9, 4)  # empty, but B · N overflows
# Operator, changed arguments, and the message that every device gives.
INVALID = [
    ("hash_sign", {"x": zeros(2, 2, 9, 0), "planes": zeros(5, 0)}, "the head size must be at least 1"),
    ("hash_sign", {"x": zeros(2, 9, 4)}, r"x must be \[B, H, N, D\], found \[2, 9, 4\]"),
    ("hash_sign", {"x": zeros(2, 2, 9, 4).int()}, "x must be float16, bfloat16, float32 or float64"),
    ("hash_sign", {"x": HUGE}, r"x must have at most 2\^40 elements"),
    ("hash_sign", {"x": EMPTY_HUGE}, r"x must have at most 2\^40 elements"),
    ("hash_sign", {"x": without_memory(2, 2, 9, 4)}, "x has no memory"),
    ("hash_sign", {"planes": zeros(0, 4)}, "the number of planes must lie in 1 … 63, found 0"),
    ("hash_sign", {"planes": zeros(64, 4)}, "the number of planes must lie in 1 … 63, found 64"),
    ("hash_sign", {"planes": zeros(5, 4).int()}, "planes must be float16"),
    ("hash_sign", {"planes": zeros(5, 5)}, r"planes must be \[5, 4\]"),
    ("subtract_mean", {"x": zeros(2, 9, 4)}, r"x must be \[B, H, N, D\], found \[2, 9, 4\]"),
    ("subtract_mean", {"x": zeros(2, 2, 9, 4).int()}, "x must be float16, bfloat16, float32 or float64"),
    ("subtract_mean", {"x": EMPTY_HUGE}, r"x must have at most 2\^40 elements"),
    ("subtract_mean", {"lengths": tensor([9])}, r"lengths must be \[2\], found \[1\]"),
    ("hamming_kmeans", {"hashes": zeros(2, 2, 9)}, "hashes must be int64"),
    ("hamming_kmeans", {"clusters": 0}, "clusters must lie in 1 … 1024, found 0"),
    ("hamming_kmeans", {"iterations": -1}, "iterations must lie in 1 … 1000000, found -1"),
    ("hamming_kmeans", {"bits": 64}, "bits must lie in 1 … 63, found 64"),
    ("hamming_kmeans", {"lengths": tensor([9.0, 9.0])}, "lengths must be int64 or int32"),
    ("hamming_kmeans", {"lengths": tensor([9])}, r"lengths must be \[2\], found \[1\]"),
    ("key_groups", {"q": zeros(2, 9, 4)}, r"q must be \[B, H, N, D\], found \[2, 9, 4\]"),
    ("key_groups", {"k": zeros(2, 2, 9, 5)}, r"k must be \[2, 2, 9, 4\], found"),
    ("key_groups", {"q": zeros(2, 2, 9, 0), "k": zeros(2, 2, 9, 0)}, "the head size must lie in 1 … 256"),
    ("key_groups", {"q": zeros(2, 2, 9, 257), "k": zeros(2, 2, 9, 257)}, "1 … 256, found 257"),
    ("key_groups", {"q": HUGE, "k": HUGE}, r"q must have at most 2\^40 elements"),
    ("key_groups", {"q": zeros(2, 2, 9, 4).int()}, "q must be float16, bfloat16, float32 or float64"),
    ("key_groups", {"k": zeros(2, 2, 9, 4).half()}, "q and k must share a type"),
    ("key_groups", {"k": without_memory(2, 2, 9, 4)}, "k has no memory"),
    ("key_groups", {"key_lengths": tensor([9])}, r"key_lengths must be \[2\], found \[1\]"),
    ("key_groups", {"clusters": 1025}, "clusters must lie in 1 … 1024, found 1025"),
    ("key_groups", {"rank": 0}, "rank must lie in 1 … 256, found 0"),
    ("key_groups", {"iterations": 0}, "iterations must lie in 1 … 1000000, found 0"),
    ("clustered_attention", {"k": zeros(2, 2, 9, 5)}, r"k must be \[2, 2, 9, 4\], found"),
    ("clustered_attention", {"v": zeros(2, 2, 8, 3)}, r"v must be \[2, 2, 9, 3\], found \[2, 2, 8, 3\]"),
    ("clustered_attention", {"v": zeros(2, 2, 9, 0)}, "the head size must be at least 1"),
    ("clustered_attention", {"v": zeros(2, 2, 9, 3).half()}, "q, k and v must share a type"),
    ("clustered_attention", {"v": without_memory(2, 2, 9, 3)}, "v has no memory"),
    ("clustered_attention", {"groups": zeros(2, 2, 9).long()}, "groups must be int32"),
    ("clustered_attention", {"groups": zeros(2, 2, 8).int()}, r"groups must be \[2, 2, 9\], found"),
    ("clustered_attention", {"key_lengths": tensor([True, True])}, "key_lengths must be int64 or int32"),
    ("clustered_attention", {"clusters": -5}, "clusters must lie in 1 … 1024, found -5"),
    (
        "clustered_attention",
        {"clusters": 1 << 62},
        "clusters must lie in 1 … 1024, found 4611686018427387904",
    ),
    ("clustered_attention", {"dropout": float("nan")}, "dropout must lie in 0 … 1, excluding 1"),
    ("clustered_attention", {"dropout": 0.5}, "dropout needs a seed"),
    ("clustered_attention", {"dropout": 0.5, "seed": tensor([1, 2])}, r"the seed must be \[1\], found \[2\]"),
    ("clustered_attention", {"dropout": 0.5, "seed": tensor([1.5])}, "the seed must be int64"),
    ("clustered_attention_backward", {"grad": zeros(2, 2, 8, 3)}, r"grad must be \[2, 2, 9, 3\]"),
    ("clustered_attention_backward", {"grad": zeros(2, 2, 9, 3).int()}, "grad must be float16"),
    ("clustered_attention_backward", {"softmax": zeros(1)}, r"softmax must be \[2, 2, 2, 3\], found \[1\]"),
    ("clustered_attention_backward", {"kept": zeros(0)}, r"kept must be \[2, 2, "),
    (
        "clustered_attention_backward",
        {"values": zeros(2, 2, 3, 3).double()},
        "values must be what forward returned",
    ),
    ("improved_clustered_attention", {"topk": 0}, "topk must"),
    ("improved_clustered_attention_backward", {"mass": zeros(2, 2, 2)}, r"mass must be \[2, 2, 3\]"),
    (
        "improved_clustered_attention_backward",
        {"top": zeros(2, 2, 3, 10).int()},
        "the number of top keys must lie in 0 … 9, found 10",
    ),
    (
        "improved_clustered_attention_backward",
        {"top": zeros(2, 2, 3, 2).long()},
        "top must be what forward returned",
    ),
    (
        "improved_clustered_attention_backward",
        {"out": zeros(2, 2, 3, 9).mT},
        "out must be what forward returned",
    ),
    ("near_attention", {"k": zeros(2, 2, 8, 4), "v": zeros(2, 2, 8, 3)}, r"k must be \[2, 2, 9, 4\]"),
    ("near_attention", {"v": without_memory(2, 2, 9, 3)}, "v has no memory"),
    ("near_attention", {"window": -1}, "window must be at least 0, found -1"),
    ("near_attention", {"clusters": 1025}, "clusters must lie in 1 … 1024, found 1025"),
    ("near_attention", {"dropout": 0.5}, "dropout needs a seed"),
    ("near_attention_backward", {"softmax": zeros(2, 2, 1, 9)}, r"softmax must be \[2, 2, 2, 9\]"),
    ("near_attention_backward", {"far": zeros(2, 2, 2, 9)}, r"far must be \[2, 2, 2, 3\]"),
    ("near_attention_backward", {"kept": zeros(2, 2, 7)}, "kept must be"),
    ("near_attention_backward", {"out": zeros(2, 2, 9, 3).half()}, "out must be what forward returned"),
    ("near_attention_backward", {"grad": zeros(2, 2, 9, 4)}, r"grad must be \[2, 2, 9, 3\]"),
    (
        "near_attention_backward",
        {"top": zeros(2, 2, 3, 0).int()},
        "the number of top keys must lie in 1 … 9, found 0",
    ),
    ("near_attention", {"topk": 0}, "topk must"),
]
