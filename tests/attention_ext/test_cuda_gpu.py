"""Compares the CUDA kernels on a GPU with float64 and the CPU kernels; needs only torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_cases import Problem, error, of_one_sequence, padded, poison, problem
from torch import Tensor

from attention_ext import why_unavailable
from attention_ext.clustered_attention import native as clustered_native
from attention_ext.clustered_attention import reference as clustered_reference
from attention_ext.hashing import native as hash_native
from attention_ext.hashing import reference as hash_reference
from attention_ext.improved_clustered_attention import native as improved_native
from attention_ext.improved_clustered_attention import reference as improved_reference
from attention_ext.key_grouping import native as key_native
from attention_ext.key_grouping import reference as key_reference
from attention_ext.kmeans import native as kmeans_native
from attention_ext.kmeans import reference as kmeans_reference
from attention_ext.near_attention import native as near_native
from attention_ext.near_attention import reference as near_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(why_unavailable("cuda") is not None, reason=str(why_unavailable("cuda"))),
]

HALF = [torch.float16, torch.bfloat16]
# Seeds without near ties among top keys, which rounding on a GPU would decide differently than the oracle.
PROBLEMS: dict[str, Callable[[], Problem]] = {
    "small": lambda: problem(2, 2, 50, 50, 16, 16, 7, [50, 23], [50, 23]),
    "paper": lambda: problem(1, 6, 2048, 2048, 64, 64, 100, [2000], [2000], seed=9),
    "cross": lambda: problem(2, 3, 333, 1500, 48, 80, 31, [333, 100], [1500, 129]),
    "wide heads": lambda: problem(1, 2, 200, 700, 256, 256, 20),
    "odd sizes": lambda: problem(1, 1, 97, 131, 37, 5, 13),
    "many clusters": lambda: problem(1, 2, 3000, 1100, 32, 32, 1024, seed=1),
    "one position": lambda: problem(1, 1, 1, 1, 1, 1, 3),
    "empty": lambda: problem(2, 1, 20, 20, 8, 8, 3, [20, 0], [0, 20]),
    "more tiles than threads": lambda: problem(1, 1, 17_000, 17_000, 16, 16, 5),
}
# None: clustered attention; K: improved clustered attention; K and W: near attention.
Settings = int | tuple[int, ...] | None
SETTINGS: list[Settings] = [None, 32, (32, 16)]
# Head size, settings and type that CUDA lacks, and the message.
LIMITS: list[tuple[int, Settings, torch.dtype, str]] = [
    (257, 2, torch.float32, "head sizes must lie in 1 … 256 on CUDA, found 257 and 8"),
    (8, 1025, torch.float32, "topk must lie in 1 … 1024 on CUDA, found 1025"),
    (8, (1025, 1), torch.float32, "topk must lie in 1 … 1024 on CUDA, found 1025"),
    (8, 2, torch.float64, "q must be float32, float16 or bfloat16 on CUDA"),
]
MODULES = {
    "native": (clustered_native, improved_native, near_native),
    "reference": (clustered_reference, improved_reference, near_reference),
}


def problem_of(name: str, settings: Settings) -> Problem:
    """Return a problem; for near attention, one of self-attention."""
    p = PROBLEMS[name]()
    return of_one_sequence(p) if isinstance(settings, tuple) else p


def attend(backend: str, p: Problem, settings: Settings, device: str) -> Callable[..., Tensor]:
    """Return a backend's operator as a function of q, k and v."""
    groups, queries, keys = (x.to(device) for x in (p.groups, p.query_lengths, p.key_lengths))
    clustered, improved, near = MODULES[backend]

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if settings is None:
            return clustered.clustered_attention(q, k, v, groups, queries, keys, p.clusters)
        if isinstance(settings, tuple):
            return near.near_attention(q, k, v, groups, queries, p.clusters, *settings)
        return improved.improved_clustered_attention(q, k, v, groups, queries, keys, p.clusters, settings)

    return run


def operator_of(p: Problem, settings: Settings, device: str) -> tuple[Any, list[Any]]:
    """Return an operator, and its arguments from the groups to those before dropout."""
    groups, queries, keys = (x.to(device) for x in (p.groups, p.query_lengths, p.key_lengths))
    ops = torch.ops.attention_ext
    if settings is None:
        return ops.clustered_attention.default, [groups, queries, keys, p.clusters]
    if isinstance(settings, tuple):
        return ops.near_attention.default, [groups, queries, p.clusters, *settings]
    return ops.improved_clustered_attention.default, [groups, queries, keys, p.clusters, settings]


def kernels(p: Problem, settings: Settings, device: str = "cuda") -> Callable[..., Tensor]:
    return attend("native", p, settings, device)


def oracle(p: Problem, settings: Settings) -> Callable[..., Tensor]:
    return attend("reference", p, settings, "cpu")


def run(
    function: Callable[..., Tensor], p: Problem, dtype: torch.dtype, device: str = "cuda"
) -> list[Tensor]:
    """Return output and gradients, moved to the CPU; padding is NaN."""
    leaves = [x.to(device).requires_grad_() for x in padded(p, dtype)]
    out = function(*leaves)
    grads = torch.autograd.grad(out, leaves, p.grad.to(device, dtype))
    return [x.detach().cpu() for x in (out, *grads)]


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize(
    ("shape", "bits"), [((2, 3, 501, 64), 63), ((1, 1, 1, 7), 5), ((1, 2, 4099, 256), 33)]
)
def test_hashes(shape: tuple[int, ...], bits: int, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=g).to(dtype)
    planes = torch.randn(bits, shape[-1], generator=g)
    found = hash_native.hash_sign(x.cuda(), planes.cuda()).cpu()
    assert torch.equal(found, hash_reference.hash_sign(x, planes))
    view = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(hash_native.hash_sign(view.cuda(), planes.cuda()).cpu(), found)
    lengths = torch.full((len(x),), shape[2] // 2)
    centred = hash_native.subtract_mean(x.cuda(), lengths.cuda()).cpu()
    assert torch.equal(centred, hash_reference.subtract_mean(x, lengths))


@pytest.mark.parametrize("clusters", [1, 33, 100, 129, 1024])
@pytest.mark.parametrize("iterations", [1, 10])
def test_groups(clusters: int, iterations: int) -> None:
    N = 2100
    lengths = torch.tensor([0, 1, clusters, clusters + 1, N])
    g = torch.Generator().manual_seed(clusters)
    for bits in (3, 63):
        hashes = torch.randint(0, (1 << bits) - (bits == 63), (5, 2, N), generator=g)
        expected = kmeans_reference.hamming_kmeans(hashes, lengths, clusters, iterations, bits)
        for times in (1, 4):  # small and large blocks of queries
            some = hashes.repeat(1, times, 1).cuda()
            found = kmeans_native.hamming_kmeans(some, lengths.cuda(), clusters, iterations, bits)
            assert torch.equal(found.cpu(), expected.repeat(1, times, 1))


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize(
    ("D", "rank", "clusters", "iterations"),
    [(64, 8, 100, 3), (64, 12, 25, 4), (37, 30, 139, 2), (9, 2, 1024, 2), (256, 40, 7, 2)],
)
def test_groups_by_keys(D: int, rank: int, clusters: int, iterations: int, dtype: torch.dtype) -> None:
    """Few keys and more than are sampled; sums and centroids in shared memory or not; both block sizes."""
    N = 1100
    lengths, keys = torch.tensor([0, clusters, clusters + 1, N]), torch.tensor([9, N, 1, N])
    q, k = (
        torch.randn(4, 2, N, D, generator=torch.Generator().manual_seed(i)).to(dtype).repeat(1, 8, 1, 1)
        for i in (1, 2)
    )
    arguments = poison(q, lengths), poison(k, keys), lengths, keys
    expected = key_reference.key_groups(*arguments, clusters, rank, iterations)
    for heads in (1, 16):
        some = (x[:, :heads] if x.dim() > 1 else x for x in arguments)
        found = key_native.key_groups(*(x.cuda() for x in some), clusters, rank, iterations)
        assert torch.equal(found.cpu(), expected[:, :heads])


def test_groups_of_repeated_queries() -> None:
    """Half of a sequence is one query; fewer distinct queries than clusters."""
    q, k = (torch.randn(2, 2, 900, 16, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    q[0, :, 100:550] = q[0, :, :1]
    q[1] = q[1, :, torch.arange(900) % 9]
    lengths = torch.tensor([900, 700])
    arguments = q, k, lengths, lengths
    found = key_native.key_groups(*(x.cuda() for x in arguments), 30, 8, 4)
    assert torch.equal(found.cpu(), key_reference.key_groups(*arguments, 30, 8, 4))
    hashes = hash_reference.hash_sign(q, torch.randn(63, 16, generator=torch.Generator().manual_seed(3)))
    found = kmeans_native.hamming_kmeans(hashes.cuda(), lengths.cuda(), 30, 5, 63)
    assert torch.equal(found.cpu(), kmeans_reference.hamming_kmeans(hashes, lengths, 30, 5, 63))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_float32(name: str, settings: Settings) -> None:
    """The error against float64 is at most twice that of the same maths in PyTorch."""
    p = problem_of(name, settings)
    exact = run(oracle(p, settings), p, torch.float64, "cpu")
    theirs = run(oracle(p, settings), p, torch.float32, "cpu")
    for found, other, truth in zip(run(kernels(p, settings), p, torch.float32), theirs, exact, strict=True):
        assert error(found, truth) <= 2 * error(other, truth) + 3e-7


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_half_precision(name: str, settings: Settings, dtype: torch.dtype) -> None:
    """Sums are as accurate as float32: little error beyond rounding the results.

    Gradients are computed from the rounded output, so their tolerance is larger.
    """
    p = problem_of(name, settings)
    p.q, p.k, p.v, p.grad = (x.to(dtype).double() for x in (p.q, p.k, p.v, p.grad))
    exact = run(oracle(p, settings), p, torch.float64, "cpu")
    for i, (found, truth) in enumerate(zip(run(kernels(p, settings), p, dtype), exact, strict=True)):
        assert found.dtype == dtype
        assert error(found, truth) <= (4 if i else 1.5) * error(truth.to(dtype), truth) + 1e-6


@pytest.mark.skipif(why_unavailable("cpu") is not None, reason=str(why_unavailable("cpu")))
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_cpu_backend_agrees(settings: Settings) -> None:
    p = problem_of("paper", settings)
    for found, other in zip(
        run(kernels(p, settings), p, torch.float32),
        run(kernels(p, settings, "cpu"), p, torch.float32, "cpu"),
        strict=True,
    ):
        assert error(found, other.double()) < 5e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_same_bits_every_time(settings: Settings, dtype: torch.dtype) -> None:
    p = problem_of("paper", settings)
    first = run(kernels(p, settings), p, dtype)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(run(kernels(p, settings), p, dtype), first, strict=True))


@pytest.mark.parametrize("settings", SETTINGS)
def test_an_utterance_gives_the_same_bits_alone_and_in_a_batch(settings: Settings) -> None:
    N, n = (1900, 1700) if isinstance(settings, tuple) else (900, 411)
    p = problem(3, 2, N, 1900, 32, 32, 20, [N, n, 5], [1900, 1700, 5])
    alone = Problem(
        p.q[1:2, :, :n], p.k[1:2, :, :1700], p.v[1:2, :, :1700], p.grad[1:2, :, :n],
        p.groups[1:2, :, :n], p.query_lengths[1:2], p.key_lengths[1:2], 20,
    )  # fmt: skip
    together, apart = (run(kernels(x, settings), x, torch.bfloat16) for x in (p, alone))
    for size, a, b in zip((n, n, 1700, 1700), together, apart, strict=True):
        assert torch.equal(a[1:2, :, :size], b)
        assert (a[1:2, :, size:] == 0).all()


@pytest.mark.parametrize("settings", SETTINGS)
def test_strided_input(settings: Settings) -> None:
    """Memory is laid out as [B, N, H, D], as the projection layer returns it."""
    p = problem_of("cross", settings)
    function = kernels(p, settings)
    expected = run(function, p, torch.bfloat16)

    def strided(*inputs: Tensor) -> Tensor:
        return function(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs))

    assert all(torch.equal(a, b) for a, b in zip(run(strided, p, torch.bfloat16), expected, strict=True))


@pytest.mark.skipif(why_unavailable("cpu") is not None, reason=str(why_unavailable("cpu")))
@pytest.mark.parametrize("settings", SETTINGS)
def test_dropout_masks_equal_the_cpu_s(settings: Settings) -> None:
    p = problem_of("cross", settings)
    seed = torch.tensor([987654321])

    def drop(device: str) -> Tensor:
        given = [x.to(device) for x in padded(p, torch.float32)]
        operator, sizes = operator_of(p, settings, device)
        return operator(*given, *sizes, 0.3, seed.to(device))[0].cpu()

    torch.testing.assert_close(drop("cuda"), drop("cpu"), rtol=1e-4, atol=1e-5)


def whole(x: Tensor, planes: Tensor, lengths: Tensor, settings: Settings) -> Tensor:
    """Group and attend, with x as queries, keys and values; by hashes for clustered, else by keys."""
    if settings is None:
        groups = kmeans_native.hamming_kmeans(hash_native.hash_sign(x, planes), lengths, 20, 5, 63)
        return clustered_native.clustered_attention(x, x, x, groups, lengths, lengths, 20)
    groups = key_native.key_groups(x.detach(), x.detach(), lengths, lengths, 20, 8, 5)
    if isinstance(settings, tuple):
        return near_native.near_attention(x, x, x, groups, lengths, 20, *settings)
    return improved_native.improved_clustered_attention(x, x, x, groups, lengths, lengths, 20, settings)


def whole_inputs(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 700, 64, generator=g).cuda().bfloat16().requires_grad_()
    return x, torch.randn(63, 64, generator=g).cuda(), torch.tensor([700, 300 + seed]).cuda()


@pytest.mark.parametrize("settings", SETTINGS)
def test_no_call_synchronises(settings: Settings) -> None:
    x, planes, lengths = whole_inputs(1)
    whole(x, planes, lengths, settings).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        whole(x, planes, lengths, settings).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("settings", SETTINGS)
def test_cuda_graph(settings: Settings) -> None:
    """Forward and backward are captured and replayed with other values and lengths."""
    x, planes, lengths = whole_inputs(1)
    grad = torch.randn(x.shape, device="cuda", dtype=x.dtype)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        out = whole(x, planes, lengths, settings)
        return out, torch.autograd.grad(out, x, grad)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(x)
    other, _, other_lengths = whole_inputs(2)
    with torch.no_grad():
        x.copy_(other)
    lengths.copy_(other_lengths)
    graph.replay()
    expected = step(other)
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_current_stream_is_used(settings: Settings) -> None:
    """Kernels on a side stream run after earlier work on that stream."""
    x, planes, lengths = whole_inputs(3)
    expected = whole(x, planes, lengths, settings)
    side = torch.cuda.Stream()
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side), torch.no_grad():
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        found = whole(late, planes, lengths, settings)
    side.synchronize()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("settings", SETTINGS)
def test_registration(settings: Settings) -> None:
    p = problem_of("small", settings)
    inputs = [x.cuda().float().requires_grad_() for x in (p.q, p.k, p.v)]
    operator, arguments = operator_of(p, settings, "cuda")
    torch.library.opcheck(operator, (*inputs, *arguments, 0.0, None))
    lengths = p.query_lengths.cuda(), p.key_lengths.cuda()
    hashes = hash_native.hash_sign(inputs[0], torch.randn(20, 16, device="cuda"))
    ops = torch.ops.attention_ext
    torch.library.opcheck(ops.hamming_kmeans.default, (hashes, lengths[0], 4, 3, 20))
    torch.library.opcheck(ops.subtract_mean.default, (p.q.cuda().half(), lengths[0]))
    torch.library.opcheck(ops.key_groups.default, (p.q.cuda().float(), p.k.cuda().float(), *lengths, 4, 8, 3))


@pytest.mark.parametrize("settings", SETTINGS)
def test_memory_grows_with_the_length(settings: Settings) -> None:
    def peak(N: int) -> int:
        x = torch.randn(1, 6, N, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        planes, lengths = torch.randn(63, 64, device="cuda"), torch.tensor([N], device="cuda")
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        whole(x, planes, lengths, settings).sum().backward()
        return torch.cuda.max_memory_allocated() - before

    assert peak(65536) < 8.5 * peak(8192)


@pytest.mark.parametrize(("D", "settings", "dtype", "message"), LIMITS)
def test_errors_name_the_limit(D: int, settings: Settings, dtype: torch.dtype, message: str) -> None:
    p = problem(1, 1, 9, 9, D, 8, 3)
    with pytest.raises(RuntimeError, match=message):
        run(kernels(p, settings), p, dtype)


def test_lengths_on_another_device_raise() -> None:
    """Copying them would synchronise host and device."""
    p = PROBLEMS["small"]()
    inputs = [x.cuda() for x in p.inputs(torch.float32)]
    with pytest.raises(RuntimeError, match="query_lengths must lie on the same device"):
        clustered_native.clustered_attention(*inputs, p.groups.cuda(), p.query_lengths, p.key_lengths, 7)
