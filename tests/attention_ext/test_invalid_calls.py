"""Invalid calls of the compiled operators: a message that names the argument, never a crash."""

from typing import Any

import pytest
import torch
from kernel_cases import INVALID, needs_kernels, valid_calls, valid_cpu_calls, without_memory
from torch import full, tensor, zeros

from attention_ext import why_unavailable

pytestmark = needs_kernels
LARGEST = 2**31 - 1

# What only the CPU checks: values in memory; LSH and local attention, which CUDA lacks.
ON_THE_CPU = [
    ("subtract_mean", {"lengths": tensor([9, 10])}, "lengths must lie in 0 … 9, found 10"),
    ("hamming_kmeans", {"lengths": tensor([9, 10])}, "lengths must lie in 0 … 9, found 10"),
    ("hamming_kmeans", {"lengths": tensor([9, -1])}, "lengths must lie in 0 … 9, found -1"),
    ("hamming_kmeans", {"bits": 4}, "hashes must have no bits above the lowest 4"),
    ("hamming_kmeans", {"hashes": full((2, 2, 9), -1)}, "hashes must have no bits above"),
    ("clustered_attention", {"key_lengths": tensor([9, 10])}, "key_lengths must lie in 0 … 9, found 10"),
    ("key_groups", {"query_lengths": tensor([9, 10])}, "query_lengths must lie in 0 … 9, found 10"),
    ("key_groups", {"key_lengths": tensor([-1, 9])}, "key_lengths must lie in 0 … 9, found -1"),
    ("clustered_attention", {"query_lengths": tensor([-1, 9]).int()}, "query_lengths must lie in 0 … 9"),
    ("clustered_attention", {"groups": full((2, 2, 9), 3).int()}, "groups must lie in"),
    ("clustered_attention", {"groups": full((2, 2, 9), LARGEST).int()}, "groups must lie in"),
    ("clustered_attention", {"groups": full((2, 2, 9), -1).int()}, "groups must lie in"),
    ("clustered_attention_backward", {"kept": zeros(2, 2, 7)}, "kept must be"),
    (
        "improved_clustered_attention_backward",
        {"top": full((2, 2, 3, 2), LARGEST).int()},
        "top must be what forward returned",
    ),
    (
        "improved_clustered_attention_backward",
        {"top": full((2, 2, 3, 2), -9).int()},
        "top must be what forward returned",
    ),
    (
        "improved_clustered_attention_backward",
        {"top": tensor([5, 4]).int().expand(2, 2, 3, 2).contiguous()},
        "top must be what forward returned",
    ),
    ("lsh_buckets", {"x": zeros(2, 2, 9, 0), "rotations": zeros(1, 0, 2)}, "the head size must be"),
    ("lsh_buckets", {"rotations": zeros(0, 4, 2)}, r"rotations must be \[R, D, F\] with R ≥ 1"),
    ("lsh_buckets", {"rotations": zeros(1, 4, 0)}, "the number of rotations must lie in 1 … 32768, found 0"),
    ("lsh_buckets", {"rotations": zeros(1, 5, 2)}, "rotations must be"),
    ("lsh_buckets", {"rotations": zeros(1, 4, 2).int()}, "rotations must be float16"),
    ("lsh_buckets", {"lengths": tensor([9, 10])}, "lengths must lie in 0 … 9, found 10"),
    ("lsh_attention", {"k": zeros(2, 2, 8, 4), "v": zeros(2, 2, 8, 3)}, r"k must be \[2, 2, 9, 4\]"),
    ("lsh_attention", {"v": without_memory(2, 2, 9, 3)}, "v has no memory"),
    ("lsh_attention", {"buckets": zeros(2, 2, 1, 9).long()}, "buckets must be int32"),
    ("lsh_attention", {"buckets": zeros(2, 2, 1, 8).int()}, "buckets must be"),
    ("lsh_attention", {"buckets": zeros(2, 2, 0, 9).int()}, r"buckets must be \[B, H, R, N\] with R ≥ 1"),
    ("lsh_attention", {"buckets": full((2, 2, 1, 9), LARGEST).int()}, "buckets must lie in 0 … 65535"),
    ("lsh_attention", {"buckets": full((2, 2, 1, 9), -1).int()}, "buckets must lie in 0 … 65535"),
    ("lsh_attention", {"chunk": -(2**62)}, "chunk must be at least 1, found -4611686018427387904"),
    ("lsh_attention", {"lengths": tensor([9, -1])}, "lengths must lie in 0 … 9, found -1"),
    ("lsh_attention_backward", {"order": full((2, 2, 1, 9), 9).int()}, "order must be what forward"),
    ("lsh_attention_backward", {"order": full((2, 2, 1, 9), -1).int()}, "order must be what forward"),
    ("lsh_attention_backward", {"softmax": zeros(2, 2, 1, 9)}, r"softmax must be \[2, 2, 2, 9\]"),
    ("lsh_attention_backward", {"out": zeros(2, 2, 9, 3).half()}, "out must be what forward returned"),
    ("lsh_attention_backward", {"grad": zeros(2, 2, 9, 4)}, r"grad must be \[2, 2, 9, 3\]"),
    ("local_attention", {"k": zeros(2, 2, 8, 4), "v": zeros(2, 2, 8, 3)}, r"k must be \[2, 2, 9, 4\]"),
    ("local_attention", {"v": without_memory(2, 2, 9, 3)}, "v has no memory"),
    ("local_attention", {"left": -1}, "left must be at least 0, found -1"),
    ("local_attention", {"right": -1}, "right must be at least 0, found -1"),
    ("local_attention", {"chunk": 0}, "chunk must be at least 1, found 0"),
    ("local_attention", {"globals": -(2**62)}, "globals must be at least 0, found -4611686018427387904"),
    ("local_attention", {"lengths": tensor([9, 10])}, "lengths must lie in 0 … 9, found 10"),
    ("local_attention", {"dropout": 0.5}, "dropout needs a seed"),
    ("local_attention_backward", {"softmax": zeros(2, 2, 1, 9)}, r"softmax must be \[2, 2, 2, 9\]"),
    ("local_attention_backward", {"out": zeros(2, 2, 9, 3).half()}, "out must be what forward returned"),
    ("local_attention_backward", {"grad": zeros(2, 2, 9, 4)}, r"grad must be \[2, 2, 9, 3\]"),
    ("near_attention", {"topk": 0}, "topk must be at least 1, found 0"),
    ("near_attention", {"lengths": tensor([9, 10])}, "lengths must lie in 0 … 9, found 10"),
    ("near_attention", {"groups": full((2, 2, 9), 3).int()}, "groups must lie in"),
    ("near_attention_backward", {"top": full((2, 2, 3, 2), LARGEST).int()}, "top must be what forward"),
    ("near_attention_backward", {"top": full((2, 2, 3, 2), -9).int()}, "top must be what forward returned"),
]


@pytest.mark.parametrize(("operator", "changes", "message"), INVALID + ON_THE_CPU)
def test_invalid_calls_are_refused(operator: str, changes: dict[str, Any], message: str) -> None:
    """A head size of 0 once corrupted the heap; forged top keys or orders were used as addresses."""
    assert why_unavailable("cpu") is None
    ops = torch.ops.attention_ext
    arguments = {**valid_calls(ops), **valid_cpu_calls(ops)}[operator]
    getattr(ops, operator)(**arguments)
    with pytest.raises(RuntimeError, match=message) as caught:
        getattr(ops, operator)(**(arguments | changes))
    assert str(caught.value).startswith("attention_ext: ")
    assert "\n" not in str(caught.value)
