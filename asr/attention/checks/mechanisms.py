"""Checks of mechanisms without their own parameters, as functions of q, k and v."""

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.attention.checks.expect import expect, expect_close, expect_gradients, expect_refusal
from asr.attention.checks.inputs import LENGTHS, build, inputs
from asr.attention.softmax import QueryKeyMechanism
from asr.lengths import keep_mask


def run_mechanism(
    mechanism: QueryKeyMechanism, given: Sequence[Tensor], lengths: Tensor | None
) -> list[Tensor]:
    """Return the output, and the gradients of q, k and v for a nonlinear function of the output."""
    leaves = [x.clone().requires_grad_() for x in given]
    out = mechanism(*leaves, lengths)
    out.cos().sum().backward()
    return [out.detach(), *(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)]


PARTS = ("the output", "the gradient of q", "the gradient of k", "the gradient of v")


def padding_and_batch(name: str) -> None:
    """An utterance is the same alone and in a batch, whatever the padding holds: NaN, infinity, 1e30."""
    mechanism = build(name)
    for poison in (float("nan"), float("inf"), 1e30):
        q, k, v = inputs(mechanism, poison=poison)
        batch = run_mechanism(mechanism, (q, k, v), LENGTHS)
        for b, n in enumerate(LENGTHS.tolist()):
            one = [x[b : b + 1, :, :n] for x in (q, k, v)]
            alone = run_mechanism(mechanism, one, torch.tensor([n]))
            for part, inside, outside in zip(PARTS, batch, alone, strict=True):
                where = f"length {n} in a batch with padding {poison:g}"
                expect_close(inside[b, :, :n], outside[0], f"{part} of {where}", atol=1e-12)
                expect(bool((inside[b, :, n:] == 0).all()), f"{part} of {where} is not zero at padding")


def no_lengths(name: str) -> None:
    """Without lengths, all positions are valid."""
    mechanism = build(name)
    given = inputs(mechanism, torch.tensor([31, 31]))
    expect_close(mechanism(*given), mechanism(*given, torch.tensor([31, 31])), "the output", atol=1e-12)


def weights_times_values(name: str) -> None:
    """`weights` @ v is the output; both are zero at padding."""
    mechanism = build(name)
    q, k, v = inputs(mechanism)
    out, weights = mechanism(q, k, v, LENGTHS), mechanism.weights(q, k, LENGTHS)
    expect_close(weights @ v.nan_to_num(), out, "weights @ v against the output", atol=1e-10)
    keep = keep_mask(LENGTHS, 31)
    padded_BHN = ~keep[:, None].expand(-1, 2, -1)
    for part, rows in (("queries", weights), ("keys", weights.mT)):
        expect(bool((rows[padded_BHN] == 0).all()), f"weights of padded {part}: not zero")
    if mechanism.cross_attention:
        q, k, v = (torch.randn(4, 2, *size, dtype=torch.float64) for size in ((11, 6), (17, 6), (17, 3)))
        lengths = {"query_lengths": torch.tensor([11, 7, 0, 5]), "key_lengths": torch.tensor([2, 17, 9, 0])}
        crossed = mechanism(q, k, v, **lengths)
        what = "weights @ v against the output of cross-attention"
        expect_close(mechanism.weights(q, k, **lengths) @ v, crossed, what, atol=1e-10)


def huge_logits(name: str) -> None:
    """Output and gradients are finite with logits of 1e4, and if all queries and keys are equal."""
    mechanism = build(name)
    lengths = torch.tensor([31, 13])
    q, k, v = inputs(mechanism, lengths, dtype=torch.float32, scale=1e4)
    q[1], k[1] = q[1, :, :1], k[1, :, :1]
    for part, result in zip(PARTS, run_mechanism(mechanism, (q, k, v), lengths), strict=True):
        expect(result.isfinite().all(), f"{part}: NaN or infinity")


def strides(name: str) -> None:
    """Inputs that are not contiguous give the same output."""
    mechanism = build(name)
    given = inputs(mechanism)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    expect_close(mechanism(*strided, LENGTHS), mechanism(*given, LENGTHS), "the output", atol=1e-13)


def half_precision(name: str) -> None:
    """In bfloat16 and float16, only inputs and outputs are rounded."""
    mechanism = build(name)
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v = inputs(mechanism, dtype=dtype)
        out = mechanism(q, k, v, LENGTHS)
        expect(out.dtype == dtype, f"the output of {dtype} is {out.dtype}")
        exact = mechanism(q.double(), k.double(), v.double(), LENGTHS)
        expect_close(out, exact, f"the output in {dtype}", atol=1e-5, rtol=torch.finfo(dtype).eps)


def gradients(name: str) -> None:
    """Gradients equal finite differences."""
    # Heads of size three and two, because the mechanism runs twice for each number. One sequence, because the
    # gradients of sequences are independent.
    mechanism = build(name)
    lengths = torch.tensor([9])
    q, k, v = inputs(mechanism, lengths, size=10, poison=0.0)
    leaves = [x.contiguous().requires_grad_() for x in (q[:, :1, :, :3], k[:, :1, :, :3], v[:, :1, :, :2])]
    expect_gradients(lambda *given: mechanism(*given, lengths), leaves)


def wrong_lengths(name: str) -> None:
    """Negative lengths, and lengths beyond the sequence, are refused."""
    for backend in ("reference", "auto"):
        mechanism, x = build(name, backend=backend), torch.ones(2, 1, 5, 4)
        for wrong in (-1, 6):
            lengths = torch.tensor([5, wrong])
            expect_refusal(mechanism, (x, x, x, lengths), f"lengths 0 … 5, found [5, {wrong}]")


def empty_batches(name: str) -> None:
    """Empty batches have the same gradients as PyTorch's attention, whichever of q, k and v need one."""
    for backend in ("reference", "auto"):
        mechanism = build(name, backend=backend)
        sizes = [(0, 2, 3, 3), (1, 0, 3, 3), (1, 2, 0, 0)]
        sizes += [(1, 2, 0, 3), (1, 2, 3, 0)] if mechanism.cross_attention else []
        for size, needs in itertools.product(sizes, itertools.product((False, True), repeat=3)):
            found, expected = (
                _of_ones(attend, size, needs) for attend in (mechanism, F.scaled_dot_product_attention)
            )
            same = [
                a is b is None or (a is not None and b is not None and torch.equal(a, b))
                for a, b in zip(found, expected, strict=True)
            ]
            expect(all(same), f"B, H, N, S = {size}, gradients of {needs}: another output or gradient")


def _of_ones(
    attend: Callable[..., Tensor], size: Sequence[int], needs: Sequence[bool]
) -> list[Tensor | None]:
    B, H, N, S = size
    q, k, v = (
        torch.ones(B, H, *last, requires_grad=need)
        for last, need in zip(((N, 4), (S, 4), (S, 5)), needs, strict=True)
    )
    out = attend(q, k, v)
    expect(out.requires_grad == any(needs), f"B, H, N, S = {size}: the output has no gradient")
    if out.requires_grad:
        out.sum().backward()
    return [out.detach(), q.grad, k.grad, v.grad]
