"""Compares compiled hashing and K-means with the references on every instruction set."""

import os
import subprocess
import sys

import emptied_clusters
import pytest
import torch
from kernel_cases import needs_kernels, poison, threads
from quick import quick
from torch import Tensor

from attention_ext.hashing import reference as hash_reference
from attention_ext.hashing.native import hash_sign, subtract_mean
from attention_ext.kmeans import reference as kmeans_reference
from attention_ext.kmeans.native import hamming_kmeans

pytestmark = needs_kernels


def check_hashes(x: Tensor, planes: Tensor) -> None:
    assert torch.equal(hash_sign(x, planes), hash_reference.hash_sign(x, planes))


def check_groups(hashes: Tensor, lengths: list[int], clusters: int, iterations: int, bits: int = 63) -> None:
    arguments = hashes, torch.tensor(lengths), clusters, iterations, bits
    assert torch.equal(hamming_kmeans(*arguments), kmeans_reference.hamming_kmeans(*arguments))


@pytest.mark.hardest(bits=[63, 40], dtype=[torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("shape", "bits"),
    [((2, 3, 501, 64), 63), ((1, 1, 1, 7), 5), ((2, 2, 97, 33), 40), ((1, 2, 0, 8), 9), ((1, 1, 95, 256), 1)],
)
def test_hashes(shape: tuple[int, ...], bits: int, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=g).to(dtype)
    planes = torch.randn(bits, shape[-1], generator=g)
    check_hashes(x, planes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_planes_of_any_type_and_layout(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(8)
    x, planes = torch.randn(1, 2, 50, 24, generator=g), torch.randn(40, 24, generator=g).to(dtype)
    expected = hash_reference.hash_sign(x, planes)
    wide = torch.cat([torch.full((40, 3), float("nan"), dtype=dtype), planes], dim=1)
    for same in (planes, wide[:, 3:], planes.T.contiguous().T, planes.repeat_interleave(2, dim=1)[:, ::2]):
        assert torch.equal(hash_sign(x, same), expected)


@pytest.mark.hardest(size=[3, 65, 600])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("size", [3, 63, 64, 65, 256, 600])
def test_hashes_next_to_a_plane(size: int) -> None:
    """Products whose float32 sum has the wrong sign: the kernel must recompute them in float64."""
    g = torch.Generator().manual_seed(5)
    planes = torch.randn(63, size, generator=g)
    x = torch.randn(1, 1, 2000, size, generator=g)
    along = planes[torch.arange(2000) % 63]
    x -= (x * along).sum(-1, keepdim=True) / (along * along).sum(-1, keepdim=True) * along
    exact = hash_reference.hash_sign(x, planes)
    single = torch.where(x @ planes.T > 0, 1 << torch.arange(63), 0).sum(-1)
    assert not torch.equal(single, exact)  # else the test is vacuous
    assert torch.equal(hash_sign(x, planes), exact)


@pytest.mark.hardest(size=[17, 65, 256])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("size", [1, 2, 3, 17, 63, 64, 65, 256])
def test_hashes_of_integers(size: int) -> None:
    """Large integer vectors with products −1, 0 and 1, too small for any quantisation."""
    g = torch.Generator().manual_seed(size)
    planes = torch.randint(-300, 301, (63, size), generator=g)
    planes[:, 0] = 1
    x = torch.randint(-200, 201, (63 * 6, size), generator=g)
    near = torch.arange(len(x))
    x[:, 0] = 0
    x[:, 0] = near // 63 % 3 - 1 - (x * planes[near % 63]).sum(-1)
    products = x @ planes.T
    expected = torch.where(products > 0, 1 << torch.arange(63), 0).sum(-1)
    for scale in (1.0, 2.0**-140, 2.0**90):  # exact in float32, except some of the smallest
        scaled = (x.double() * scale).float()
        kept = (scaled.double() == x.double() * scale).all(-1)
        assert kept.sum() > 20
        found = hash_sign(scaled[None, None], planes.float())
        assert torch.equal(found[0, 0][kept], expected[kept])


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("size", [3, 64, 65])
def test_hashes_of_uneven_vectors(size: int) -> None:
    """Rows and planes of very different scales, single large elements, zeros, infinities."""
    g = torch.Generator().manual_seed(size)
    x = torch.randn(1, 2, 400, size, generator=g)
    x[0, 0] *= 10.0 ** torch.randint(-42, 36, (400, 1), generator=g)
    x[0, 1, torch.arange(200), torch.randint(size, (200,), generator=g)] *= 1e6
    x[0, 1, 200:220] = 0
    x[0, 1, torch.arange(220, 240), torch.randint(size, (20,), generator=g)] = torch.inf
    x[0, 1, 240:300] *= torch.rand(60, size, generator=g) < 0.1
    planes = torch.randn(63, size, generator=g).double()
    planes[:40] *= 10.0 ** torch.randint(-250, 150, (40, 1), generator=g)
    planes[40:50, 0] *= 1e5
    planes[50:52] = 0
    check_hashes(x, planes)
    x[0, 0, 5, 0] = torch.nan
    hash_sign(x, planes)  # unspecified, but must not crash


@pytest.mark.hardest(scale=[1e-44, 1e37])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-20, 1e18, 1e37])
def test_hashes_of_extreme_vectors(scale: float) -> None:
    g = torch.Generator().manual_seed(6)
    x = (torch.randn(1, 1, 200, 16, generator=g).double() * scale).float()
    planes = torch.randn(63, 16, generator=g)
    check_hashes(x, planes)


def test_hashes_of_views() -> None:
    x = torch.randn(2, 50, 3, 32, generator=torch.Generator().manual_seed(1)).transpose(1, 2)
    planes = torch.randn(63, 300)[:, 5:37]
    check_hashes(x, planes)
    check_hashes(x.mT.contiguous().mT, planes)


@pytest.mark.hardest(shape=[(4, 3, 501, 64), (4, 1, 300, 33)], dtype=[torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(4, 3, 501, 64), (4, 1, 9, 7), (4, 2, 0, 8), (4, 1, 300, 33)])
def test_subtracted_means(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Equal to the last bit, alone as well; padding is NaN."""
    N = shape[2]
    lengths = torch.tensor([N, N // 2, min(N, 1), 0])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(N)) * 10 + 5
    x[..., 0] *= 1e-3
    x = poison(x.to(dtype), lengths)
    found = subtract_mean(x, lengths)
    assert torch.equal(found, hash_reference.subtract_mean(x, lengths))
    wide = x.transpose(1, 2).contiguous().transpose(1, 2).repeat_interleave(2, dim=3)[..., ::2]
    assert torch.equal(subtract_mean(wide, lengths), found)
    for b, n in enumerate(lengths.tolist()):
        assert torch.equal(subtract_mean(x[b : b + 1, :, :n], lengths[b : b + 1]), found[b : b + 1, :, :n])


@pytest.mark.hardest(scale=[1e-44, 3e37])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-37, 1e-20, 1e18, 3e37])
def test_subtracted_means_of_extreme_vectors(scale: float) -> None:
    x = (torch.randn(1, 2, 90, 12, generator=torch.Generator().manual_seed(1)).double() * scale).float()
    lengths = torch.tensor([90])
    assert torch.equal(subtract_mean(x, lengths), hash_reference.subtract_mean(x, lengths))
    x[0, 0, 3, 3] = torch.inf
    subtract_mean(x, lengths)  # unspecified, but must not crash


def random_hashes(shape: tuple[int, ...], bits: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, (1 << bits) - (bits == 63), shape, generator=g)


@pytest.mark.hardest(clusters=[33, 129, 1024], iterations=[10])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize(
    "clusters", quick([1, 2, 31, 32, 33, 100, 127, 128, 129, 1024], (1, 33, 129).__contains__)
)
@pytest.mark.parametrize("iterations", [1, 2, 10])
def test_groups(clusters: int, iterations: int) -> None:
    """Lengths 0, 1, C, C ± 1, a prime and full in one batch."""
    N = 1100
    lengths = [0, 1, clusters - 1, clusters, clusters + 1, 521, N]
    check_groups(random_hashes((7, 2, N), 63, clusters), lengths, clusters, iterations)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("bits", [1, 2, 7])
def test_groups_with_many_ties(bits: int) -> None:
    """Few bits: equal distances, tied majorities, empty clusters, early convergence."""
    check_groups(random_hashes((2, 2, 700), bits, bits), [700, 333], 40, 10, bits)


@pytest.mark.hardest(clusters=[60, 200])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("clusters", [9, 32, 60, 128, 200])
def test_groups_that_converge_slowly(clusters: int) -> None:
    """Loose groups: in late iterations only some centroids change, and some move away from their queries."""
    centres = random_hashes((1, 2, clusters), 63, 5)
    g = torch.Generator().manual_seed(clusters)
    noise = (torch.rand(1, 2, 1500, 63, generator=g) < 0.3).long() << torch.arange(63)
    members = torch.randint(clusters, (1, 2, 1500), generator=g)
    hashes = centres.gather(2, members) ^ noise.sum(-1)
    for iterations in (2, 3, 5, 12):
        check_groups(hashes, [1500], clusters, iterations)


@pytest.mark.hardest(distinct=[21])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("distinct", [3, 20, 21, 200])
def test_groups_of_repeated_hashes(distinct: int) -> None:
    """Fewer distinct hashes than clusters, as many, more; half of the longest sequence is one hash."""
    pool = random_hashes((3, 2, distinct), 63, distinct)
    draws = torch.randint(distinct, (3, 2, 900), generator=torch.Generator().manual_seed(1))
    hashes = pool.gather(2, draws)
    hashes[0, :, 100:550] = hashes[0, :, :1]
    check_groups(hashes, [900, 333, 21], 20, 6)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("count", [1, 4])
def test_groups_of_clusters_that_lose_all_members(count: int) -> None:
    """With four threads, the blocks of a sequence share its distances."""
    sizes = emptied_clusters.CLUSTERS, emptied_clusters.ITERATIONS, emptied_clusters.BITS
    with threads(count):
        check_groups(emptied_clusters.HASHES, [16, 16, 16], *sizes)
        repeated = emptied_clusters.HASHES.repeat(1, 1, 200)  # the same groups from several blocks
        check_groups(repeated, [3200, 3200, 3200], *sizes)


def test_groups_of_identical_queries() -> None:
    hashes = torch.full((1, 1, 300), 12345)
    assert (hamming_kmeans(hashes, torch.tensor([300]), 100, 10, 63) == 0).all()


def test_groups_of_a_long_sequence_for_any_number_of_threads() -> None:
    """20,000 queries make several blocks, whose counts are added up."""
    hashes = random_hashes((1, 1, 20_000), 31, 3)
    for count in (1, 2, 3, 8):
        with threads(count):
            check_groups(hashes, [19_997], 50, 4, 31)


@pytest.mark.slow
def test_fewer_threads_than_requested() -> None:
    """OpenMP may start one thread when PyTorch requests four; it must not wait for the others."""
    code = """
import torch
from attention_ext.kmeans import native, reference
torch.set_num_threads(4)
hashes, lengths = torch.randint(1 << 31, (1, 1, 9000)), torch.tensor([9000])
ours = native.hamming_kmeans(hashes, lengths, 50, 4, 31)
assert torch.equal(ours, reference.hamming_kmeans(hashes, lengths, 50, 4, 31))
"""
    few = os.environ | {"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "4"}
    subprocess.run([sys.executable, "-c", code], check=True, env=few, timeout=240)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("length", [32_640, 70_000])
def test_groups_with_most_queries_in_one_cluster(length: int) -> None:
    """As many members as a block can have, and more than 15 bits can count."""
    g = torch.Generator().manual_seed(length)
    position = torch.arange(length).expand(1, 1, length)
    noise = ((torch.rand(1, 1, length, 7, generator=g) < 0.45).long() << torch.arange(7)).sum(-1)
    # The others have the most distinct hashes, so that the second cluster starts from one of them.
    others = (1 << 60) - 1 - (position << 7)
    hashes = torch.where((position > 0) & (position < 300), others, 0) ^ noise
    lengths = torch.tensor([length])
    expected = kmeans_reference.hamming_kmeans(hashes, lengths, 2, 3, 63)
    assert expected.sum() < 0.01 * length
    for count in (1, 2):
        with threads(count):
            assert torch.equal(hamming_kmeans(hashes, lengths, 2, 3, 63), expected)


def test_a_sequence_gets_the_same_groups_alone_and_in_a_batch() -> None:
    hashes = random_hashes((2, 1, 400), 63, 4)
    together = hamming_kmeans(hashes, torch.tensor([400, 150]), 20, 10, 63)
    alone = hamming_kmeans(hashes[1:, :, :150], torch.tensor([150]), 20, 10, 63)
    assert torch.equal(together[1:, :, :150], alone)
    assert (together[1, :, 150:] == -1).all()


@pytest.mark.slow
def test_operator_registration() -> None:
    x, planes = torch.randn(1, 2, 30, 8), torch.randn(20, 8)
    hashes = hash_sign(x, planes)
    ops = torch.ops.attention_ext
    torch.library.opcheck(ops.hash_sign.default, (x, planes))
    torch.library.opcheck(ops.subtract_mean.default, (x.half(), torch.tensor([25])))
    torch.library.opcheck(ops.hamming_kmeans.default, (hashes, torch.tensor([25]), 4, 3, 20))
