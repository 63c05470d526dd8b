"""Compares compiled LSH attention with the reference in float64."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from kernel_cases import (
    Attention,
    Inputs,
    check_accuracy,
    check_dropout_gradient,
    check_large_logits,
    check_same_bits,
    check_threads,
    check_views,
    needs_kernels,
    poison,
    run,
)

from attention_ext.lsh_attention import native, reference

pytestmark = needs_kernels


@dataclass
class Problem(Inputs):
    """A call of LSH attention."""

    buckets: torch.Tensor
    lengths: torch.Tensor
    chunk: int


def problem(
    B: int,
    H: int,
    N: int,
    D: int,
    E: int,
    R: int,
    chunk: int,
    lengths: list[int] | None = None,
    seed: int = 0,
) -> Problem:
    g = torch.Generator().manual_seed(seed)
    q, k, v, grad = (torch.randn(B, H, N, d, generator=g, dtype=torch.float64) for d in (D, D, E, E))
    lengths_B = torch.tensor(lengths or [N] * B)
    buckets = reference.lsh_buckets(k, torch.randn(R, D, 4, generator=g), lengths_B)
    return Problem(q, k, v, grad, buckets, lengths_B, chunk)


def native_of(p: Problem, **options: Any) -> Attention:
    return lambda q, k, v: native.lsh_attention(q, k, v, p.buckets, p.lengths, chunk=p.chunk, **options)


def reference_of(p: Problem) -> Attention:
    return lambda q, k, v: reference.lsh_attention(q, k, v, p.buckets, p.lengths, chunk=p.chunk)


PROBLEMS = {
    "one round": lambda: problem(1, 2, 130, 16, 16, 1, 8),
    "padded": lambda: problem(3, 2, 100, 64, 64, 3, 32, [100, 67, 0]),
    "odd sizes": lambda: problem(2, 1, 97, 33, 20, 4, 7, [97, 15]),
    "chunks of one": lambda: problem(3, 1, 9, 3, 2, 2, 1, [9, 1, 2]),
    "one chunk": lambda: problem(2, 1, 50, 8, 8, 2, 1000, [50, 31]),
    "chunks larger than the lanes": lambda: problem(1, 1, 200, 8, 24, 2, 75),
    "blocks": lambda: problem(1, 1, 800, 8, 8, 3, 32, [777]),
    "largest heads": lambda: problem(1, 1, 70, 256, 256, 2, 16),
}


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("name", PROBLEMS)
def test_float64_equals_the_reference(name: str) -> None:
    p = PROBLEMS[name]()
    check_accuracy(native_of(p), reference_of(p), p, torch.float64)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("name", ["padded", "blocks", "largest heads"])
def test_float32_is_as_accurate_as_the_reference(name: str) -> None:
    p = PROBLEMS[name]()
    check_accuracy(native_of(p), reference_of(p), p, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_accurate_as_the_reference(dtype: torch.dtype) -> None:
    p = PROBLEMS["padded"]()
    check_accuracy(native_of(p), reference_of(p), p, dtype)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("D", "half"), [(64, 32), (7, 1), (256, 13)])
def test_buckets_equal_the_reference_s(D: int, half: int, dtype: torch.dtype) -> None:
    """Vectors between two rotations, too close for float32, and zeros."""
    g = torch.Generator().manual_seed(1)
    rotations = torch.randn(2, D, half, generator=g)
    x = torch.randn(2, 2, 300, D, generator=g, dtype=torch.float64)
    between = torch.linalg.qr((rotations[0, :, :1] - rotations[0, :, -1:]).double()).Q
    x[0] -= (x[0] @ between) * between.T
    x[1, 0, 5] = 0
    x, lengths = x.to(dtype), torch.tensor([300, 77])
    found = native.lsh_buckets(poison(x, lengths), rotations, lengths)
    assert torch.equal(found, reference.lsh_buckets(x, rotations, lengths))


def test_gradcheck() -> None:
    """The second problem has positions that see no other: chunks of one."""
    for p in (problem(2, 1, 13, 5, 3, 2, 3, [13, 8]), problem(2, 1, 5, 4, 3, 2, 1, [5, 1])):
        assert torch.autograd.gradcheck(native_of(p), p.inputs(torch.float64))


def test_operators_pass_opcheck() -> None:
    p = problem(2, 1, 17, 5, 3, 2, 4, [17, 11])
    ops = torch.ops.attention_ext
    torch.library.opcheck(ops.lsh_buckets.default, (p.q, torch.randn(2, 5, 4), p.lengths))
    for dropout, seed in ((0.0, None), (0.3, torch.tensor([7]))):
        shared = (*p.inputs(torch.float32), p.buckets, p.lengths, p.chunk)
        torch.library.opcheck(ops.lsh_attention.default, (*shared, dropout, seed))


def test_padding_is_never_read() -> None:
    """Padding of q, k, v and the output's gradient is NaN, buckets at padding are arbitrary."""
    p = problem(3, 2, 90, 16, 16, 2, 8, [90, 41, 0])
    clean = run(native_of(p), p, torch.float32)
    p.q, p.k, p.v, p.grad = (poison(x, p.lengths) for x in (p.q, p.k, p.v, p.grad))
    padding = torch.arange(90) >= p.lengths[:, None]
    p.buckets = p.buckets.masked_fill(padding[:, None, None, :], -7)
    check_same_bits(run(native_of(p), p, torch.float32), clean)
    assert all((x.transpose(1, 2)[padding] == 0).all() for x in clean)


def test_an_utterance_gives_the_same_bits_alone_and_in_a_batch() -> None:
    for chunk in (8, 60):
        p = problem(2, 2, 90, 16, 16, 3, chunk, [90, 41])
        together = run(native_of(p), p, torch.float32)
        q, k, v, grad = (x[1:, :, :41] for x in (p.q, p.k, p.v, p.grad))
        alone = Problem(q, k, v, grad, p.buckets[1:, :, :, :41], p.lengths[1:], chunk)
        check_same_bits([x[1:, :, :41] for x in together], run(native_of(alone), alone, torch.float32))


def test_views_equal_copies() -> None:
    p = problem(2, 3, 60, 16, 16, 2, 8)
    check_views(native_of(p), p)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    p = problem(1, 2, 1500, 16, 16, 2, 32)
    check_threads(native_of(p), p)


def test_large_logits_do_not_overflow() -> None:
    p = problem(1, 1, 60, 8, 8, 2, 8)
    check_large_logits(native_of(p), reference_of(p), p)


def test_nan_in_a_valid_key_reaches_the_queries_that_see_it() -> None:
    p = problem(1, 1, 60, 8, 8, 2, 8)
    p.k[0, 0, 3, 2] = torch.nan
    seen = reference.lsh_weights(p.q, p.k.nan_to_num(), p.buckets, p.lengths, 8)[0, 0, :, 3] > 0
    for dtype in (torch.float32, torch.float64):
        found = native.lsh_attention(*p.inputs(dtype), p.buckets, p.lengths, 8)
        assert torch.equal(found[0, 0].isnan().all(-1), seen)


def test_dropout() -> None:
    """With v = 1 the output is the weights: each is either scaled by 1/(1 − p) or zero."""
    p = problem(1, 2, 60, 8, 60, 1, 8)
    p.v = torch.eye(60, dtype=torch.float64).expand(1, 2, 60, 60).clone()
    plain = native_of(p)(*p.inputs(torch.float64)).detach()
    dropped_run = native_of(p, dropout=0.25)
    torch.manual_seed(3)
    dropped = dropped_run(*p.inputs(torch.float64)).detach()
    kept = dropped > 0
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.75)
    assert 0.70 < kept[plain > 0].double().mean() < 0.80
    assert not torch.equal(dropped_run(*p.inputs(torch.float64)).detach(), dropped)
    torch.manual_seed(3)
    assert torch.equal(dropped_run(*p.inputs(torch.float64)).detach(), dropped)


def test_dropout_gradcheck() -> None:
    p = problem(1, 1, 13, 5, 3, 2, 3)
    check_dropout_gradient(native_of(p, dropout=0.4), p)


def test_any_chunk_beyond_the_sequence_equals_the_sequence() -> None:
    """The reference once padded the sequence to a whole chunk, and ran out of memory."""
    p = problem(2, 1, 30, 4, 4, 2, 30, [30, 17])
    for attend in (native_of, reference_of):
        expected = run(attend(p), p, torch.float32)
        for chunk in (31, 2**62):
            check_same_bits(run(attend(replace(p, chunk=chunk)), p, torch.float32), expected)


def test_errors_name_the_argument() -> None:
    p = problem(1, 1, 10, 4, 4, 2, 4)
    inputs = p.inputs(torch.float32)
    for change, message in (
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"buckets_BHRN": p.buckets + 70_000}, "buckets must lie in"),
        ({"buckets_BHRN": p.buckets[..., :9]}, "buckets must be"),
        ({"lengths_B": torch.tensor([11])}, "lengths must lie in"),
    ):
        arguments = {"buckets_BHRN": p.buckets, "lengths_B": p.lengths, "chunk": 4, **change}
        with pytest.raises(RuntimeError, match=message):
            native.lsh_attention(*inputs, **arguments)
    with pytest.raises(RuntimeError, match="rotations must be"):
        native.lsh_buckets(inputs[0], torch.randn(2, 5, 4), p.lengths)
