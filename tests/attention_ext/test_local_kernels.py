"""Compares compiled local attention with the reference in float64."""

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

from attention_ext.local_attention import native, reference

pytestmark = needs_kernels


@dataclass
class Problem(Inputs):
    """A call of local attention."""

    lengths: torch.Tensor
    window: int
    first: int


def problem(
    B: int,
    H: int,
    N: int,
    D: int,
    E: int,
    window: int,
    first: int,
    lengths: list[int] | None = None,
    seed: int = 0,
) -> Problem:
    g = torch.Generator().manual_seed(seed)
    q, k, v, grad = (torch.randn(B, H, N, d, generator=g, dtype=torch.float64) for d in (D, D, E, E))
    return Problem(q, k, v, grad, torch.tensor(lengths or [N] * B), window, first)


def native_of(p: Problem, **options: Any) -> Attention:
    return lambda q, k, v: native.local_attention(q, k, v, p.lengths, p.window, p.first, **options)


def reference_of(p: Problem) -> Attention:
    return lambda q, k, v: reference.local_attention(q, k, v, p.lengths, p.window, p.first)


PROBLEMS = {
    "window": lambda: problem(1, 2, 130, 16, 16, 8, 0),
    "padded": lambda: problem(3, 2, 100, 64, 64, 20, 3, [100, 67, 0]),
    "odd sizes": lambda: problem(2, 1, 97, 33, 20, 7, 5, [97, 3]),
    "itself and one": lambda: problem(2, 1, 40, 8, 8, 0, 1, [40, 19]),
    "window of all": lambda: problem(2, 1, 50, 8, 8, 1000, 0, [50, 31]),
    "all global": lambda: problem(2, 1, 50, 8, 8, 3, 1000, [50, 31]),
    "blocks": lambda: problem(1, 1, 800, 8, 8, 40, 9, [777]),
    "pieces": lambda: problem(1, 1, 700, 8, 24, 300, 20),
    "largest heads": lambda: problem(1, 1, 70, 256, 256, 9, 2),
}


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("name", PROBLEMS)
def test_float64_equals_the_reference(name: str) -> None:
    p = PROBLEMS[name]()
    check_accuracy(native_of(p), reference_of(p), p, torch.float64)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("name", ["padded", "blocks", "pieces", "largest heads"])
def test_float32_is_as_accurate_as_the_reference(name: str) -> None:
    p = PROBLEMS[name]()
    check_accuracy(native_of(p), reference_of(p), p, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_accurate_as_the_reference(dtype: torch.dtype) -> None:
    p = PROBLEMS["padded"]()
    check_accuracy(native_of(p), reference_of(p), p, dtype)


def test_a_window_of_zero_returns_the_values() -> None:
    """The weights are constant, so that queries and keys have no gradient."""
    p = problem(3, 1, 40, 3, 2, 0, 0, [40, 1, 2])
    for found, truth in zip(
        run(native_of(p), p, torch.float64), run(reference_of(p), p, torch.float64), strict=True
    ):
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-14)


def test_gradcheck() -> None:
    for p in (problem(2, 1, 13, 5, 3, 2, 0, [13, 8]), problem(2, 1, 9, 4, 3, 1, 2, [9, 1])):
        assert torch.autograd.gradcheck(native_of(p), p.inputs(torch.float64))


def test_operators_pass_opcheck() -> None:
    p = problem(2, 1, 17, 5, 3, 2, 1, [17, 11])
    for dropout, seed in ((0.0, None), (0.3, torch.tensor([7]))):
        arguments = (*p.inputs(torch.float32), p.lengths, p.window, p.first, dropout, seed)
        torch.library.opcheck(torch.ops.attention_ext.local_attention.default, arguments)


def test_padding_is_never_read() -> None:
    """Padding of q, k, v and the output's gradient is NaN."""
    p = problem(3, 2, 90, 16, 16, 9, 2, [90, 41, 0])
    clean = run(native_of(p), p, torch.float32)
    p.q, p.k, p.v, p.grad = (poison(x, p.lengths) for x in (p.q, p.k, p.v, p.grad))
    check_same_bits(run(native_of(p), p, torch.float32), clean)
    padding = torch.arange(90) >= p.lengths[:, None]
    assert all((x.transpose(1, 2)[padding] == 0).all() for x in clean)


@pytest.mark.parametrize(("window", "first"), [(8, 0), (60, 3), (1000, 1), (3, 1000)])
def test_an_utterance_gives_the_same_bits_alone_and_in_a_batch(window: int, first: int) -> None:
    p = problem(2, 2, 700, 8, 8, window, first, [700, 341])
    together = run(native_of(p), p, torch.float32)
    q, k, v, grad = (x[1:, :, :341] for x in (p.q, p.k, p.v, p.grad))
    alone = Problem(q, k, v, grad, p.lengths[1:], window, first)
    check_same_bits([x[1:, :, :341] for x in together], run(native_of(alone), alone, torch.float32))


def test_views_equal_copies() -> None:
    p = problem(2, 3, 60, 16, 16, 8, 2)
    check_views(native_of(p), p)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    p = problem(1, 2, 1500, 16, 16, 32, 5)
    check_threads(native_of(p), p)


def test_large_logits_do_not_overflow() -> None:
    p = problem(1, 1, 60, 8, 8, 8, 2)
    check_large_logits(native_of(p), reference_of(p), p)


def test_nan_in_a_valid_key_reaches_the_queries_that_see_it() -> None:
    p = problem(1, 1, 60, 8, 8, 8, 2)
    p.k[0, 0, 30, 2] = torch.nan
    seen = reference.local_weights(p.q, p.k.nan_to_num(), p.lengths, 8, 2)[0, 0, :, 30] > 0
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(native_of(p)(*p.inputs(dtype))[0, 0].isnan().all(-1), seen)


def test_dropout() -> None:
    """With v = 1 the output is the weights: each is either scaled by 1/(1 − p) or zero."""
    p = problem(1, 2, 60, 8, 60, 20, 3)
    p.v = torch.eye(60, dtype=torch.float64).expand(1, 2, 60, 60).clone()
    plain = native_of(p)(*p.inputs(torch.float64)).detach()
    dropped_run = native_of(p, dropout=0.25)
    torch.manual_seed(3)
    dropped = dropped_run(*p.inputs(torch.float64)).detach()
    kept = dropped > 0
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.75)
    assert 0.70 < kept[plain > 0].double().mean() < 0.80
    assert not torch.equal(dropped_run(*p.inputs(torch.float64)).detach(), dropped)


def test_dropout_gradcheck() -> None:
    p = problem(1, 1, 13, 5, 3, 3, 2)
    check_dropout_gradient(native_of(p, dropout=0.4), p)


def test_any_size_beyond_the_sequence_equals_the_sequence() -> None:
    p = problem(2, 1, 30, 4, 4, 30, 30, [30, 17])
    expected = run(native_of(p), p, torch.float32)
    for size in (31, 2**62):
        check_same_bits(run(native_of(replace(p, window=size, first=size)), p, torch.float32), expected)
