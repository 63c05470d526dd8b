"""Compares compiled grouping by keys with the reference on every instruction set."""

import emptied_clusters
import pytest
import torch
from kernel_cases import needs_kernels, poison, threads
from torch import Tensor

from attention_ext.key_grouping import native, reference

pytestmark = needs_kernels


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(q: Tensor, k: Tensor, lengths: list[int], keys: list[int], *options: int) -> Tensor:
    """The same groups, bit for bit; padding is NaN."""
    n, s = torch.tensor(lengths), torch.tensor(keys)
    arguments = poison(q, n), poison(k, s), n, s, *options
    found = native.key_groups(*arguments)
    assert torch.equal(found, reference.key_groups(*arguments))
    return found


@pytest.mark.hardest(clusters=[31, 100, 130], dtype=[torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("D", "rank", "clusters", "iterations"),
    [
        (64, 8, 100, 2),
        (1, 8, 3, 3),
        (7, 3, 2, 5),
        (33, 5, 31, 1),
        (48, 256, 9, 2),
        (16, 17, 1, 2),
        (256, 9, 130, 2),
    ],
)
def test_groups(D: int, rank: int, clusters: int, iterations: int, dtype: torch.dtype) -> None:
    """Lengths 0, 1, C, C + 1, a prime and full; fewer keys than directions, and more than are sampled."""
    N, S = 311, 300
    lengths = [0, 1, clusters, clusters + 1, 173, N]
    q, k = vectors(6, 2, N, D).to(dtype), vectors(6, 2, S, D, seed=1).to(dtype)
    check(q, k, lengths, [S, 9, S, 2, 129, 128], clusters, rank, iterations)


@pytest.mark.usefixtures("each_set")
def test_equal_queries_and_keys() -> None:
    """Ties, empty clusters and singular covariances."""
    q = vectors(5, 1, 90, 12)[:, :, torch.arange(90) % 7]
    k = vectors(5, 1, 60, 12, seed=2)
    k[2] = k[2, :, :1] * 0.1
    k[3, ..., 2:] = 3
    found = check(q, k, [90] * 5, [1, 0, 60, 60, 60], 20, 8, 6)
    assert (found[:3] == 0).all()
    assert len(found[4].unique()) == 7


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("distinct", [3, 20, 21, 200])
def test_repeated_queries(distinct: int) -> None:
    """Fewer distinct points than clusters, as many, more; half of the longest sequence is one query."""
    draws = torch.randint(distinct, (900,), generator=torch.Generator().manual_seed(1))
    q = vectors(3, 2, distinct, 12)[:, :, draws]
    q[0, :, 100:550] = q[0, :, :1]
    check(q, vectors(3, 2, 60, 12, seed=2), [900, 333, 21], [60, 60, 60], 20, 8, 4)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("count", [1, 4])
def test_clusters_that_lose_all_members(count: int) -> None:
    """With four threads, the blocks of a head share its points."""
    q, k, lengths, keys = emptied_clusters.queries_and_keys()
    sizes = emptied_clusters.CLUSTERS, 8, emptied_clusters.ITERATIONS
    with threads(count):
        check(q, k, lengths.tolist(), keys.tolist(), *sizes)
        check(q.repeat(1, 1, 200, 1), k, [3200, 3200], keys.tolist(), *sizes)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18, 1e30])
def test_extreme_vectors(scale: float) -> None:
    check(scale * vectors(1, 2, 90, 12), vectors(1, 2, 90, 12, seed=1), [90], [90], 9, 8, 3)
    check(vectors(1, 2, 90, 12), scale * vectors(1, 2, 90, 12, seed=1), [90], [90], 9, 8, 3)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_infinite_input_gives_valid_groups(value: float) -> None:
    for spoilt in (0, 1):
        qk = [vectors(1, 2, 90, 12), vectors(1, 2, 90, 12, seed=1)]
        qk[spoilt][0, 0, 13, 2] = value
        groups = native.key_groups(*qk, torch.tensor([90]), torch.tensor([90]), 9, 8, 3)
        assert ((groups >= 0) & (groups < 9)).all()


def test_strided_input() -> None:
    q, k = (vectors(2, 60, 3, 32, seed=i).transpose(1, 2) for i in (0, 1))
    expected = check(q, k, [60, 31], [60, 31], 7, 8, 2)
    lengths = torch.tensor([60, 31])
    again = native.key_groups(q.mT.contiguous().mT, k.mT.contiguous().mT, lengths, lengths, 7, 8, 2)
    assert torch.equal(again, expected)


def test_any_number_of_threads_alone_and_in_a_batch() -> None:
    """5,000 queries of one head are several blocks, whose sums are added up."""
    q, k = vectors(2, 1, 5000, 16), vectors(2, 1, 5000, 16, seed=1)
    lengths = torch.tensor([5000, 3001])
    expected = check(q, k, [5000, 3001], [5000, 3001], 50, 8, 4)
    for count in (2, 3, 8):
        with threads(count):
            assert torch.equal(check(q, k, [5000, 3001], [5000, 3001], 50, 8, 4), expected)
            alone = native.key_groups(q[1:, :, :3001], k[1:, :, :3001], lengths[1:], lengths[1:], 50, 8, 4)
            assert torch.equal(alone, expected[1:, :, :3001])


def test_operator_registration() -> None:
    q, k, lengths = vectors(1, 2, 30, 8), vectors(1, 2, 20, 8), torch.tensor([25])
    arguments = (q, k, lengths, torch.tensor([19]), 4, 8, 2)
    torch.library.opcheck(torch.ops.attention_ext.key_groups.default, arguments)
