"""Compares the attention kernels with their references in float64: what all five must fulfil."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from attention_calls import KERNELS, Call, make
from kernel_cases import (
    check_accuracy,
    check_same_bits,
    instruction_sets,
    needs_kernels,
    operators_of,
    run,
    threads,
)
from torch import Tensor

from attention_ext.library import has_tiles, instruction_set

pytestmark = needs_kernels
every_kernel = pytest.mark.parametrize("kernel", KERNELS)

CLUSTERED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "small": ((1, 1, 50, 16, 16), {"clusters": 7}),
    "padded": ((2, 3, 200, 64, 64, [200, 133]), {"clusters": 20}),
    "odd sizes, cross": ((2, 2, 97, 33, 20, [97, 0], 31, [31, 7]), {"clusters": 10}),
    "one query, no key": ((2, 1, 1, 3, 2, [1, 1], 5, [5, 0]), {"clusters": 4}),
    "key lengths around K": ((3, 1, 40, 8, 8, [40, 5, 6], 33, [31, 32, 33]), {"clusters": 5}),
    "many clusters": ((1, 1, 700, 8, 24, None, 515), {"clusters": 300}),
    "blocks": ((1, 1, 300, 32, 32, [299], 2600, [2599]), {"clusters": 40}),
    "largest heads": ((1, 1, 64, 256, 256), {"clusters": 8}),
}
LSH: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "one round": ((1, 2, 130, 16, 16), {"rounds": 1}),
    "padded": ((3, 2, 100, 64, 64, [100, 67, 0]), {"rounds": 3, "chunk": 32}),
    "odd sizes": ((2, 1, 97, 33, 20, [97, 15]), {"rounds": 4, "chunk": 7}),
    "chunks of one": ((3, 1, 9, 3, 2, [9, 1, 2]), {"chunk": 1}),
    "one chunk": ((2, 1, 50, 8, 8, [50, 31]), {"chunk": 1000}),
    "chunks larger than the lanes": ((1, 1, 200, 8, 24), {"chunk": 75}),
    "blocks": ((1, 1, 800, 8, 8, [777]), {"rounds": 3, "chunk": 32}),
    "largest heads": ((1, 1, 70, 256, 256), {"chunk": 16}),
}
LOCAL: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "window": ((1, 2, 130, 16, 16), {"right": 8, "first": 0}),
    "two sides": ((2, 1, 97, 33, 20, [97, 3]), {"left": 19, "right": 0, "first": 0}),
    "ahead": ((2, 1, 97, 16, 16, [97, 40]), {"left": 0, "right": 40}),
    "chunks": ((3, 1, 100, 16, 20, [100, 67, 0]), {"left": 7, "right": 3, "chunk": 12}),
    "chunks alone": ((2, 1, 97, 8, 8, [97, 33]), {"left": 0, "right": 0, "chunk": 33, "first": 0}),
    "chunk of all": ((2, 1, 50, 8, 8, [50, 31]), {"left": 0, "right": 0, "chunk": 64}),
    "padded": ((3, 2, 100, 64, 64, [100, 67, 0]), {"left": 20, "right": 20, "first": 3}),
    "odd sizes": ((2, 1, 97, 33, 20, [97, 3]), {"left": 7, "right": 7, "first": 5}),
    "itself and one": ((2, 1, 40, 8, 8, [40, 19]), {"left": 0, "right": 0, "first": 1}),
    "window of all": ((2, 1, 50, 8, 8, [50, 31]), {"left": 1000, "right": 1000, "first": 0}),
    "all global": ((2, 1, 50, 8, 8, [50, 31]), {"left": 3, "right": 3, "first": 1000}),
    "blocks": ((1, 1, 800, 8, 8, [777]), {"left": 40, "right": 40, "first": 9}),
    "chunks and blocks": ((1, 1, 1300, 8, 8, [1277]), {"left": 100, "right": 20, "chunk": 90, "first": 3}),
    "pieces": ((1, 1, 700, 8, 24), {"left": 300, "right": 300, "first": 20}),
    "two vectors of queries": ((2, 1, 333, 20, 8, [333, 41]), {"left": 90, "right": 70, "first": 3}),
    "keys that leave the caches": ((1, 1, 300, 1760, 1760, [299]), {"left": 300, "right": 300, "first": 0}),
    "largest heads": ((1, 1, 70, 256, 256), {"left": 9, "right": 9}),
}
NEAR: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "small": ((1, 1, 50, 16, 16), {"clusters": 7}),
    "padded": ((2, 3, 200, 64, 64, [200, 133]), {"clusters": 20, "topk": 32, "window": 16}),
    "odd sizes": ((3, 1, 97, 33, 20, [97, 0, 5]), {"clusters": 10, "topk": 1, "window": 0}),
    "one position": ((2, 1, 1, 3, 2, [1, 1]), {"clusters": 4}),
    "lengths around K and W": ((4, 1, 40, 8, 8, [40, 31, 32, 33]), {"clusters": 5, "topk": 32, "window": 31}),
    "many clusters": ((1, 1, 700, 8, 24), {"clusters": 300, "window": 20}),
    "blocks": ((1, 1, 2600, 32, 32, [2599]), {"clusters": 40, "topk": 32, "window": 16}),
    "pieces": ((1, 1, 700, 8, 24), {"clusters": 9, "window": 300}),
    "largest heads": ((1, 1, 70, 256, 256), {"clusters": 8}),
}
CALLS = {
    **{f"clustered: {name}": ("clustered", case) for name, case in CLUSTERED.items()},
    **{
        f"improved, K = {K}: {name}": ("improved", (shape, settings | {"topk": K}))
        for K in (1, 32)
        for name, (shape, settings) in CLUSTERED.items()
    },
    **{f"lsh: {name}": ("lsh", case) for name, case in LSH.items()},
    **{f"local: {name}": ("local", case) for name, case in LOCAL.items()},
    **{f"near: {name}": ("near", case) for name, case in NEAR.items()},
}
HARDEST = [
    name for name in CALLS if name.endswith((": padded", "blocks", "pieces", "heads")) and "= 1:" not in name
]
SMALL = {"clusters": 4, "topk": 6, "rounds": 2, "chunk": 3, "left": 2, "right": 1, "window": 2, "first": 1}


def call_of(name: str) -> Call:
    kernel, (shape, settings) = CALLS[name]
    return make(kernel, *shape, **settings)


def small(kernel: str, *lengths: int) -> Call:
    """Return a call that gradcheck can afford."""
    settings = {name: SMALL[name] for name in KERNELS[kernel][2]}
    return make(kernel, len(lengths), 1, max(lengths), 5, 3, list(lengths), **settings)


@pytest.mark.hardest(name=HARDEST)
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("name", CALLS)
def test_float64_equals_the_reference(name: str) -> None:
    p = call_of(name)
    check_accuracy(p.native(), p.reference(), p, torch.float64)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("name", HARDEST)
def test_float32_is_as_accurate_as_the_reference(name: str) -> None:
    p = call_of(name)
    check_accuracy(p.native(), p.reference(), p, torch.float32)


@pytest.fixture
def without_tiles() -> Iterator[None]:
    instruction_set([name for name in instruction_sets() if name not in ("avx512_bf16", "amx")][-1])
    yield
    instruction_set()


@pytest.mark.usefixtures("without_tiles")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [name for name in HARDEST if name.endswith("padded")])
def test_half_precision_is_as_accurate_as_the_reference(name: str, dtype: torch.dtype) -> None:
    """Products are those of float32, as in the reference; test_tile_kernels.py has those of bfloat16."""
    p = call_of(name)
    check_accuracy(p.native(), p.reference(), p, dtype)


@pytest.mark.usefixtures("each_set")
@every_kernel
@pytest.mark.parametrize("count", [1, 3])  # threads with whole heads, and with shared ones
def test_bfloat16_is_float32_with_rounded_rows(kernel: str, count: int) -> None:
    """A head's rows are converted before and after; a saved output's rounding reaches the gradients."""
    p = make(kernel, 2, 2, 97, 33, 20, [97, 31])
    p.q, p.k, p.v, p.grad = (x.bfloat16() for x in (p.q, p.k, p.v, p.grad))
    exact = 1
    if kernel == "clustered":  # on tiles, centroids and weights are rounded, too
        exact = 0 if has_tiles() else 4
    with threads(count):
        found, wide = (run(p.native(), p.poisoned(), dtype) for dtype in (torch.bfloat16, torch.float32))
    check_same_bits(found[:exact], [x.bfloat16() for x in wide[:exact]])
    for x, y in zip(found, wide, strict=True):
        torch.testing.assert_close(x, y.bfloat16(), rtol=0.02, atol=0.02)


@every_kernel
def test_bfloat16_copies_no_whole_tensor(kernel: str) -> None:
    p = make(kernel, 2, 2, 97, 32, 16)
    inputs, grad = p.inputs(torch.bfloat16), p.grad.bfloat16()
    names = operators_of(lambda: p.native()(*inputs).backward(grad))
    assert f"attention_ext::{KERNELS[kernel][0].__name__}_backward" in names
    assert "aten::_to_copy" not in names


@every_kernel
def test_gradcheck(kernel: str) -> None:
    p = small(kernel, 13, 8)
    assert torch.autograd.gradcheck(p.native(), p.inputs(torch.float64))


@pytest.mark.parametrize(
    ("kernel", "settings"),
    [
        ("clustered", {"S": 13, "key_lengths": [13, 9]}),
        ("improved", {"S": 13, "key_lengths": [13, 9], "topk": 6}),
        ("lsh", {"chunk": 1}),
        ("local", {"left": 1, "right": 0}),
        ("local", {"left": 1, "right": 0, "chunk": 3}),
        ("near", {"window": 0, "topk": 1}),
    ],
)
def test_gradcheck_of_cross_attention_and_of_lone_positions(kernel: str, settings: dict[str, Any]) -> None:
    """With chunks of one, some positions see no other."""
    p = make(kernel, 2, 1, 9, 4, 3, [9, 1], **settings)
    assert torch.autograd.gradcheck(p.native(), p.inputs(torch.float64))


@pytest.mark.slow
@every_kernel
def test_operators_pass_opcheck(kernel: str) -> None:
    p = small(kernel, 17, 11)
    operator = KERNELS[kernel][0].__name__
    for dropout, seed in ((0.0, None), (0.3, torch.tensor([7]))):
        arguments = (*p.inputs(torch.float32), *p.others, dropout, seed)
        torch.library.opcheck(getattr(torch.ops.attention_ext, operator).default, arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kernel", "keys"),
    [("clustered", [70, 1, 5]), ("improved", [70, 1, 5]), ("lsh", None), ("local", None), ("near", None)],
)
def test_padding_is_never_read(kernel: str, keys: list[int] | None, dtype: torch.dtype) -> None:
    p = make(kernel, 3, 2, 90, 16, 16, [90, 41, 0], 70 if keys else 0, keys)
    clean = run(p.native(), p, dtype)
    poisoned = p.poisoned()
    check_same_bits(run(poisoned.native(), poisoned, dtype), clean)
    for found, lengths in zip(clean, (p.lengths[0], *p.lengths, p.lengths[1]), strict=True):
        padding = torch.arange(found.shape[2]) >= lengths[:, None]
        assert (found.transpose(1, 2)[padding] == 0).all()


@pytest.mark.parametrize(
    ("kernel", "N", "settings"),
    [
        ("clustered", 90, {"clusters": 9}),
        ("improved", 90, {"clusters": 9}),
        ("lsh", 90, {"rounds": 3, "chunk": 8}),
        ("lsh", 90, {"rounds": 3, "chunk": 60}),
        ("local", 700, {"left": 8, "right": 8, "first": 0}),
        ("local", 700, {"left": 60, "right": 2, "first": 3}),
        ("local", 700, {"left": 60, "right": 0, "chunk": 100, "first": 0}),
        ("local", 700, {"left": 1000, "right": 1000, "first": 1}),
        ("local", 90, {"left": 1000, "right": 1000, "first": 0}),
        ("local", 700, {"left": 3, "first": 1000}),
        ("near", 90, {"clusters": 9}),
        ("near", 700, {"clusters": 9, "window": 60}),
        ("near", 700, {"clusters": 70, "topk": 100, "window": 1000}),
    ],
)
def test_an_utterance_gives_the_same_bits_alone_and_in_a_batch(
    kernel: str, N: int, settings: dict[str, int]
) -> None:
    n = 41 * N // 90
    p = make(kernel, 2, 2, N, 8, 8, [N, n], **settings)
    together, alone = run(p.native(), p, torch.float32), p.last_alone()
    check_same_bits([x[1:, :, :n] for x in together], run(alone.native(), alone, torch.float32))


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_views_equal_copies(kernel: str, dtype: torch.dtype) -> None:
    p = make(kernel, 2, 3, 60, 16, 16)
    check_same_bits(run(p.native(), p.strided(), dtype), run(p.native(), p, dtype))


@every_kernel
def test_a_gradient_expanded_from_one_number_equals_a_copy(kernel: str) -> None:
    """Every stride of the gradient of `sum` is 0."""
    p = make(kernel, 2, 3, 60, 16, 16)
    inputs = p.inputs(torch.float32)
    p.native()(*inputs).sum().backward()
    p.grad = torch.ones_like(p.grad)
    found = [x.grad for x in inputs if x.grad is not None]
    check_same_bits(found, run(p.native(), p, torch.float32)[1:])


@pytest.mark.parametrize(
    ("kernel", "settings"),
    [
        *((kernel, {"clusters": C, "S": 2100}) for kernel in ("clustered", "improved") for C in (5, 30, 200)),
        ("lsh", {"chunk": 32}),
        ("local", {"left": 32, "right": 8, "chunk": 50, "first": 5}),
        *(("near", {"clusters": C, "window": 16}) for C in (5, 30, 200)),
    ],
)
def test_any_number_of_threads_gives_the_same_bits(kernel: str, settings: dict[str, int]) -> None:
    """Clusters of many, several and less than one tile of queries; threads with whole and shared heads."""
    p = make(kernel, 1, 2, 1500, 16, 16, **settings)
    expected = run(p.native(), p, torch.float32)
    for count in (2, 3):
        with threads(count):
            check_same_bits(run(p.native(), p, torch.float32), expected)


@every_kernel
def test_large_logits_do_not_overflow(kernel: str) -> None:
    p = make(kernel, 1, 1, 60, 8, 8)
    p.q, p.k = p.q * 100, p.k * 100
    exact = run(p.reference(), p, torch.float64)
    for found, truth in zip(run(p.native(), p, torch.float64), exact, strict=True):
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9)
    assert all(x.isfinite().all() for x in run(p.native(), p, torch.float32))


def weights(p: Call) -> Tensor:
    """Return the weights: the output with v = 1."""
    p.v = torch.eye(p.k.shape[2], dtype=torch.float64).expand(*p.k.shape[:2], -1, -1).clone()
    return p.native()(*p.inputs(torch.float64)).detach()


@every_kernel
def test_nan_in_a_valid_key_reaches_the_queries_that_see_it(kernel: str) -> None:
    p = make(kernel, 1, 1, 60, 8, 60)
    seen = weights(p)[0, 0, :, 30] > 0
    p.k[0, 0, 30, 2] = torch.nan
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(p.native()(*p.inputs(dtype))[0, 0].isnan().all(-1), seen)


@every_kernel
def test_dropout_scales_or_zeroes_each_weight(kernel: str) -> None:
    """Members of a cluster share a mask."""
    p = make(kernel, 1, 2, 60, 8, 60, **({"rounds": 1} if kernel == "lsh" else {}))
    plain, attend, found = weights(p), p.native(dropout=0.25), []
    for seed in (3, 4, 3):
        torch.manual_seed(seed)
        found.append(attend(*p.inputs(torch.float64)).detach())
    kept = found[0].abs() > 1e-9  # subtracting the top keys' share leaves rounding errors
    torch.testing.assert_close(found[0][kept], plain[kept] / 0.75)
    assert 0.70 < kept[plain > 1e-8].double().mean() < 0.80
    if kernel == "clustered":
        groups = p.others[0][0, 0]
        assert (kept[0, 0][groups == groups[0]] == kept[0, 0, 0]).all()
    assert not torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


@every_kernel
def test_dropout_gradcheck(kernel: str) -> None:
    p = small(kernel, 13)

    def seeded(*inputs: Tensor) -> Tensor:
        torch.manual_seed(11)
        return p.native(dropout=0.4)(*inputs)

    assert torch.autograd.gradcheck(seeded, p.inputs(torch.float64))


@pytest.mark.parametrize(
    ("kernel", "names"),
    [("lsh", ["chunk"]), ("local", ["left", "right", "chunk", "first"]), ("near", ["topk", "window"])],
)
def test_any_size_beyond_the_sequence_equals_the_sequence(kernel: str, names: list[str]) -> None:
    """The reference of LSH once padded the sequence to a whole chunk, and ran out of memory."""
    for attend in (Call.native, Call.reference):
        calls = [
            make(kernel, 2, 1, 30, 4, 4, [30, 17], **dict.fromkeys(names, size)) for size in (30, 31, 2**62)
        ]
        expected, *others = (run(attend(p), p, torch.float32) for p in calls)
        for found in others:
            check_same_bits(found, expected)


@every_kernel
def test_forward_mode_raises(kernel: str) -> None:
    """PyTorch would drop the tangents silently."""
    p = small(kernel, 17)
    q, k, v = (x.detach() for x in p.inputs(torch.float64))
    with pytest.raises(NotImplementedError, match="attention has no forward-mode derivative"):
        torch.func.jvp(lambda q: p.native()(q, k, v), (q,), (q,))


@every_kernel
def test_functional_derivatives_raise(kernel: str) -> None:
    """PyTorch asked for a `setup_context`; the reference backend has these derivatives."""
    p = small(kernel, 17)
    q, k, v = (x.detach() for x in p.inputs(torch.float64))
    with pytest.raises(NotImplementedError, match=r"no derivative with torch\.func: use backend=reference"):
        torch.func.grad(lambda q: p.native()(q, k, v).sum())(q)
    assert torch.func.grad(lambda q: p.reference()(q, k, v).sum())(q).shape == q.shape


@every_kernel
def test_second_derivatives_raise(kernel: str) -> None:
    """PyTorch returned zeros."""
    p = small(kernel, 17)
    q, k, v = p.inputs(torch.float64)
    output = p.native()(q, k, v).square().sum()
    with pytest.raises(NotImplementedError, match="attention has no second derivative"):
        torch.autograd.grad(output, q, create_graph=True)


@every_kernel
def test_checkpointing_repeats_the_dropout_mask(kernel: str) -> None:
    p = make(kernel, 1, 1, 30, 8, 8)
    attend = p.native(dropout=0.3)

    def again(*inputs: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(attend, *inputs, use_reentrant=False)

    results = []
    for function in (attend, again):
        torch.manual_seed(5)
        results.append(run(function, p, torch.float32))
    check_same_bits(*results)


@every_kernel
def test_compiles_without_graph_breaks(kernel: str) -> None:
    p = make(kernel, 2, 1, 40, 8, 8, [40, 23])
    compiled = torch.compile(p.native(), fullgraph=True, backend="aot_eager")
    check_same_bits(run(compiled, p, torch.float32), run(p.native(), p, torch.float32))


@every_kernel
def test_the_references_read_no_padding(kernel: str) -> None:
    """NaN in the gradient of padded outputs once reached the reference's gradients of clustered attention."""
    p = make(kernel, 2, 1, 20, 4, 4, [20, 11])
    poisoned = p.poisoned()
    check_same_bits(run(p.reference(), poisoned, torch.float32), run(p.reference(), p, torch.float32))
