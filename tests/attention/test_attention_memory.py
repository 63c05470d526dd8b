"""Memory is linear in the length, counted in bytes of all tensors of the forward and backward pass."""

import pytest
import torch
from quick import quick
from small_mechanisms import small_names, unlisted
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asr.attention import MECHANISMS, build_self_attention


class CountBytes(TorchDispatchMode):
    """Records the largest storage returned by any operation, and the sum of all storages."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
                self.total += leaf.untyped_storage().nbytes()
        return result


def count(name: str, size: int) -> CountBytes:
    layer = build_self_attention(name, model_dim=16, heads=2, backend="reference")
    x = torch.randn(1, size, 16, generator=torch.Generator().manual_seed(0))
    with CountBytes() as counted:
        layer(x, torch.tensor([size])).sum().backward()
    return counted


LINEAR = [
    "clustered-20",
    "i-clustered-20:topk=16",
    "near-20:topk=16,window=20",
    "lsh-2",
    "local-20",
    "local-100:global=7",
    "linear",
    "linear:causal=true",
    "cast-8",
    "cast-8:assign=single",
    "cast-8:capacity=64",
    "agglomerative-4",
    "agglomerative-4:causal=true",
    "summary",
    "hyper",
]
for mechanism in unlisted([*LINEAR, "none"]):
    if "N²" not in (MECHANISMS[mechanism].time, MECHANISMS[mechanism].memory):
        LINEAR.extend(small_names(mechanism))


@pytest.mark.parametrize("name", quick(LINEAR, LINEAR[::4].__contains__))
def test_memory_is_linear(name: str) -> None:
    small, large = count(name, 2048), count(name, 8192)
    assert large.largest < 4.2 * small.largest
    assert large.total < 4.2 * small.total


@pytest.mark.slow
def test_full_attention_needs_quadratic_memory() -> None:
    assert count("full", 2048).largest > 15 * count("full", 512).largest


@pytest.mark.slow
def test_oracle_top_never_stores_all_weights() -> None:
    """At most 2 heads × 256 queries × 2048 keys in any tensor, in the backward pass too."""
    assert count("oracle-top-8", 2048).largest <= 2 * 256 * 2048 * 8
