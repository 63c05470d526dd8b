"""Compares compiled clustered and improved clustered attention with the references in float64."""

from functools import partial
from typing import Any

import pytest
import torch
from kernel_cases import (
    Attention,
    Problem,
    check_accuracy,
    check_dropout_gradient,
    check_large_logits,
    check_same_bits,
    check_threads,
    check_views,
    error,
    needs_kernels,
    poison,
    problem,
    run,
)
from torch import Tensor

from attention_ext.autograd import needs_gradient
from attention_ext.clustered_attention import native as clustered_native
from attention_ext.clustered_attention import reference as clustered_reference
from attention_ext.improved_clustered_attention import native as improved_native
from attention_ext.improved_clustered_attention import reference as improved_reference

pytestmark = needs_kernels


def attention(clustered: Any, improved: Any, p: Problem, topk: int | None, **options: Any) -> Attention:
    """Return a module's attention for a problem: clustered if topk is None, else improved."""
    sizes = (p.groups, p.query_lengths, p.key_lengths, p.clusters)
    if topk is None:
        return lambda *inputs: clustered.clustered_attention(*inputs, *sizes, **options)
    return lambda *inputs: improved.improved_clustered_attention(*inputs, *sizes, topk, **options)


native = partial(attention, clustered_native, improved_native)
reference = partial(attention, clustered_reference, improved_reference)


PROBLEMS = {
    "small": lambda: problem(1, 1, 50, 50, 16, 16, 7),
    "padded": lambda: problem(2, 3, 200, 200, 64, 64, 20, [200, 133], [200, 133]),
    "odd sizes, cross": lambda: problem(2, 2, 97, 31, 33, 20, 10, [97, 0], [31, 7]),
    "one query, no key": lambda: problem(2, 1, 1, 5, 3, 2, 4, [1, 1], [5, 0]),
    "key lengths around K": lambda: problem(3, 1, 40, 33, 8, 8, 5, [40, 5, 6], [31, 32, 33]),
    "many clusters": lambda: problem(1, 1, 700, 515, 8, 24, 300),
    "blocks of keys": lambda: problem(1, 1, 300, 2600, 32, 32, 40, [299], [2599]),
    "largest heads": lambda: problem(1, 1, 64, 64, 256, 256, 8),
}


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("topk", [None, 1, 32])
@pytest.mark.parametrize("name", PROBLEMS)
def test_float64_equals_the_reference(name: str, topk: int | None) -> None:
    p = PROBLEMS[name]()
    check_accuracy(native(p, topk), reference(p, topk), p, torch.float64)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("topk", [None, 32])
@pytest.mark.parametrize("name", ["padded", "blocks of keys", "largest heads"])
def test_float32_is_as_accurate_as_the_reference(name: str, topk: int | None) -> None:
    p = PROBLEMS[name]()
    check_accuracy(native(p, topk), reference(p, topk), p, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("topk", [None, 32])
def test_half_precision_is_as_accurate_as_the_reference(topk: int | None, dtype: torch.dtype) -> None:
    p = PROBLEMS["padded"]()
    check_accuracy(native(p, topk), reference(p, topk), p, dtype)


@pytest.mark.parametrize("topk", [None, 6])
def test_gradcheck(topk: int | None) -> None:
    p = problem(2, 1, 17, 13, 5, 3, 4, [17, 11], [13, 9])
    assert torch.autograd.gradcheck(native(p, topk), p.inputs(torch.float64))


@pytest.mark.parametrize("topk", [None, 6])
def test_operators_pass_opcheck(topk: int | None) -> None:
    p = problem(2, 1, 17, 13, 5, 3, 4, [17, 11], [13, 9])
    shared = (*p.inputs(torch.float32), p.groups, p.query_lengths, p.key_lengths, p.clusters)
    ops = torch.ops.attention_ext
    for dropout, seed in ((0.0, None), (0.3, torch.tensor([7]))):
        if topk is None:
            torch.library.opcheck(ops.clustered_attention.default, (*shared, dropout, seed))
        else:
            torch.library.opcheck(ops.improved_clustered_attention.default, (*shared, topk, dropout, seed))


@pytest.mark.parametrize("topk", [None, 6])
def test_eager_calls_use_the_registered_derivative(topk: int | None) -> None:
    """Eager calls bypass PyTorch's registry, which graphs and direct operator calls use."""
    p = problem(2, 1, 17, 13, 5, 3, 4, [17, 11], [13, 9])
    eager = run(native(p, topk), p, torch.float32)

    def registered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shared = (q, k, v, p.groups, p.query_lengths, p.key_lengths, p.clusters)
        ops = torch.ops.attention_ext
        if topk is None:
            return ops.clustered_attention(*shared, 0.0, None, True)[0]
        return ops.improved_clustered_attention(*shared, topk, 0.0, None, True)[0]

    check_same_bits(eager, run(registered, p, torch.float32))


@pytest.mark.parametrize("topk", [None, 6])
def test_forward_mode_raises(topk: int | None) -> None:
    """PyTorch would drop the tangents silently."""
    p = problem(1, 1, 17, 17, 5, 3, 4)
    q, k, v = (x.detach() for x in p.inputs(torch.float64))
    with pytest.raises(NotImplementedError, match="clustered_attention has no forward-mode derivative"):
        torch.func.jvp(lambda q: native(p, topk)(q, k, v), (q,), (q,))


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("topk", [None, 6])
@pytest.mark.parametrize("name", ["odd sizes, cross", "key lengths around K", "blocks of keys"])
def test_kept_and_recomputed_weights_agree(name: str, topk: int | None, dropout: float) -> None:
    """Backward recomputes what forward did not keep."""
    p = PROBLEMS[name]()
    inputs = [x.detach() for x in p.inputs(torch.float64)]
    inputs += [p.groups, p.query_lengths, p.key_lengths]
    options = (dropout, torch.tensor([7]) if dropout else None)
    ops = torch.ops.attention_ext
    results = []
    for keep in (True, False):
        if topk is None:
            out, *saved = ops.clustered_attention(*inputs, p.clusters, *options, keep)
            grads = ops.clustered_attention_backward(p.grad, *inputs, p.clusters, *options, *saved)
        else:
            out, *saved = ops.improved_clustered_attention(*inputs, p.clusters, topk, *options, keep)
            grads = ops.improved_clustered_attention_backward(
                p.grad, *inputs, p.clusters, *options, *saved, out
            )
        assert (saved[-1].numel() > 0) == keep
        results.append([out, *grads])
    for kept, again in zip(*results, strict=True):
        assert error(kept, again) < 1e-12


def test_weights_are_kept_only_for_a_backward_pass() -> None:
    p = problem(1, 1, 50, 50, 16, 16, 7)
    inputs = p.inputs(torch.float32)
    with torch.no_grad():
        assert not needs_gradient(*inputs)
    assert needs_gradient(*inputs)
    assert not needs_gradient(*(x.detach() for x in inputs))


@pytest.mark.parametrize("topk", [None, 8])
def test_padding_is_never_read(topk: int | None) -> None:
    """Padding of q, k, v and the output's gradient is NaN, groups at padding are arbitrary."""
    p = problem(3, 2, 90, 70, 16, 16, 9, [90, 41, 0], [70, 1, 5])
    clean = run(native(p, topk), p, torch.float32)
    p.q, p.grad = poison(p.q, p.query_lengths), poison(p.grad, p.query_lengths)
    p.k, p.v = poison(p.k, p.key_lengths), poison(p.v, p.key_lengths)
    p.groups = torch.where(p.groups < 0, 2**30, p.groups)
    check_same_bits(run(native(p, topk), p, torch.float32), clean)
    for size, lengths, found in zip((90, 90, 70, 70), "qqkk", clean, strict=True):
        padding = torch.arange(size) >= (p.query_lengths if lengths == "q" else p.key_lengths)[:, None]
        assert (found.transpose(1, 2)[padding] == 0).all()


@pytest.mark.parametrize("topk", [None, 8])
def test_the_references_read_no_padding_of_the_gradient(topk: int | None) -> None:
    """NaN in the gradient of padded outputs once reached the reference's gradients of clustered attention."""
    p = problem(2, 1, 20, 20, 4, 4, 3, [20, 11], [20, 11])
    clean = run(reference(p, topk), p, torch.float32)
    p.grad = poison(p.grad, p.query_lengths)
    check_same_bits(run(reference(p, topk), p, torch.float32), clean)


@pytest.mark.parametrize("topk", [None, 8])
def test_an_utterance_gives_the_same_bits_alone_and_in_a_batch(topk: int | None) -> None:
    p = problem(2, 2, 90, 90, 16, 16, 9, [90, 41], [90, 41])
    together = run(native(p, topk), p, torch.float32)
    alone = Problem(
        *(x[1:, :, :41] for x in (p.q, p.k, p.v, p.grad, p.groups)), p.query_lengths[1:], p.key_lengths[1:], 9
    )
    check_same_bits([x[1:, :, :41] for x in together], run(native(alone, topk), alone, torch.float32))


@pytest.mark.parametrize("topk", [None, 8])
def test_views_equal_copies(topk: int | None) -> None:
    p = problem(2, 3, 60, 60, 16, 16, 6)
    check_views(native(p, topk), p)
    # A gradient expanded from one number: every stride is 0.
    inputs = p.inputs(torch.float32)
    native(p, topk)(*inputs).sum().backward()
    p.grad = torch.ones_like(p.grad)
    assert inputs[0].grad is not None
    assert torch.equal(inputs[0].grad, run(native(p, topk), p, torch.float32)[1])


@pytest.mark.parametrize("topk", [None, 32])
@pytest.mark.parametrize("C", [5, 30, 200])
def test_any_number_of_threads_gives_the_same_bits(topk: int | None, C: int) -> None:
    """Clusters of many, several and less than one tile of queries; threads with whole and shared heads."""
    p = problem(1, 2, 1500, 2100, 16, 16, C)
    check_threads(native(p, topk), p)


@pytest.mark.usefixtures("each_set")
def test_equal_logits_select_the_lowest_positions() -> None:
    """Zero queries make all logits equal, more of them than a candidate list holds."""
    p = problem(1, 1, 20, 1500, 8, 8, 3)
    p.q.zero_()
    top = torch.ops.attention_ext.improved_clustered_attention(
        *p.inputs(torch.float32), p.groups, p.query_lengths, p.key_lengths, 3, 32, 0.0, None
    )[4]
    assert torch.equal(top, torch.arange(32, dtype=torch.int32).expand_as(top))


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("topk", [1, 5, 32, 100])
def test_top_keys_have_the_highest_logits(topk: int) -> None:
    """Logits are small integers: exact in any summation order, with many ties."""
    p = problem(1, 2, 40, 1300, 4, 4, 1)
    p.q, p.k = torch.ones_like(p.q), p.k.mul(3).round()
    top = torch.ops.attention_ext.improved_clustered_attention(
        *p.inputs(torch.float32), p.groups, p.query_lengths, p.key_lengths, 1, topk, 0.0, None
    )[4]
    scores = p.k.sum(-1).unsqueeze(2)
    _, expected = improved_reference.top_keys(scores, p.key_lengths, topk)
    assert torch.equal(top.long(), expected)


@pytest.mark.parametrize("topk", [None, 5])
def test_identical_queries(topk: int | None) -> None:
    """All queries in one cluster: empty clusters must not cause a division by zero."""
    p = problem(1, 1, 200, 60, 8, 8, 20)
    p.q = p.q[:, :, :1].expand_as(p.q).clone()
    p.groups.zero_()
    check_accuracy(native(p, topk), reference(p, topk), p, torch.float64)


@pytest.mark.parametrize("topk", [None, 5])
def test_large_logits_do_not_overflow(topk: int | None) -> None:
    p = problem(1, 1, 60, 60, 8, 8, 6)
    check_large_logits(native(p, topk), reference(p, topk), p)


@pytest.mark.parametrize("topk", [None, 5])
def test_nan_in_a_valid_key_reaches_the_output(topk: int | None) -> None:
    p = problem(1, 1, 60, 60, 8, 8, 6)
    p.k[0, 0, 3, 2] = torch.nan
    assert native(p, topk)(*p.inputs(torch.float32)).isnan().all()


@pytest.mark.parametrize("topk", [None, 9])
def test_dropout(topk: int | None) -> None:
    """With v = 1 the output is the weights: each is either scaled by 1/(1 − p) or zero."""
    p = problem(1, 2, 60, 50, 8, 50, 6, key_lengths=[47])
    p.v = torch.eye(50, dtype=torch.float64).expand(1, 2, 50, 50).clone()
    plain = native(p, topk)(*p.inputs(torch.float64)).detach()
    torch.manual_seed(3)
    dropped = native(p, topk, dropout=0.25)(*p.inputs(torch.float64)).detach()
    kept = dropped.abs() > 1e-9  # subtracting the top keys' share leaves rounding errors
    assert (plain[..., :47] > 1e-8).all()
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.75)
    assert 0.70 < kept[..., :47].double().mean() < 0.80
    if topk is None:  # members of a cluster share a mask
        first = p.groups[0, 0] == p.groups[0, 0, 0]
        assert (kept[0, 0][first] == kept[0, 0, 0]).all()
    again = native(p, topk, dropout=0.25)(*p.inputs(torch.float64)).detach()
    assert not torch.equal(again, dropped)
    torch.manual_seed(3)
    assert torch.equal(native(p, topk, dropout=0.25)(*p.inputs(torch.float64)).detach(), dropped)


@pytest.mark.parametrize("topk", [None, 6])
def test_dropout_gradcheck(topk: int | None) -> None:
    p = problem(1, 2, 17, 13, 5, 3, 4, key_lengths=[11])
    check_dropout_gradient(native(p, topk, dropout=0.4), p)


@pytest.mark.parametrize("topk", [None, 6])
def test_checkpointing_repeats_the_dropout_mask(topk: int | None) -> None:
    p = problem(1, 1, 30, 30, 8, 8, 4)
    attend = native(p, topk, dropout=0.3)
    torch.manual_seed(5)
    expected = run(attend, p, torch.float32)
    torch.manual_seed(5)
    found = run(
        lambda q, k, v: torch.utils.checkpoint.checkpoint(attend, q, k, v, use_reentrant=False),
        p,
        torch.float32,
    )
    check_same_bits(found, expected)


@pytest.mark.parametrize("topk", [None, 6])
def test_compiles_without_graph_breaks(topk: int | None) -> None:
    p = problem(2, 1, 40, 40, 8, 8, 4, [40, 23], [40, 23])
    compiled = torch.compile(native(p, topk), fullgraph=True, backend="aot_eager")
    check_same_bits(run(compiled, p, torch.float32), run(native(p, topk), p, torch.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": torch.full((1, 1, 50), 7, dtype=torch.int32)}, "groups must lie in 0 …"),
        ({"key_lengths": torch.tensor([51])}, "key_lengths must lie in 0 … 50, found 51"),
        ({"k": torch.ones(1, 1, 50, 9)}, r"k must be \[1, 1, 50, 16\], found \[1, 1, 50, 9\]"),
        ({"v": torch.ones(1, 1, 50, 9, dtype=torch.float64)}, "share a type"),
    ],
)
def test_errors_name_the_value(change: dict[str, Tensor], message: str) -> None:
    p = PROBLEMS["small"]()
    q, k, v = p.inputs(torch.float32)
    for name, value in change.items():
        setattr(p, name, value)
    with pytest.raises(RuntimeError, match=message):
        native(p, None)(q, change.get("k", k), change.get("v", v))


@pytest.mark.parametrize("topk", [None, 8])
def test_padding_beyond_a_block_of_keys_changes_no_bit(topk: int | None) -> None:
    """Blocks of keys once depended on the padded size. 8,193 keys are one more than 8 blocks of 1,024."""
    long = problem(1, 1, 50, 20_000, 8, 8, 5, key_lengths=[8_193])
    short = Problem(
        long.q, long.k[:, :, :8_193], long.v[:, :, :8_193], long.grad, long.groups, long.query_lengths,
        long.key_lengths, 5,
    )  # fmt: skip
    padded, alone = (run(native(p, topk), p, torch.float32) for p in (long, short))
    check_same_bits([x[:, :, : len(y[0, 0])] for x, y in zip(padded, alone, strict=True)], alone)
