"""Local and clustered attention on tiles of bfloat16, against float64 and beside PyTorch's in bfloat16."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from attention_calls import Call, make
from kernel_cases import Inputs, check_same_bits, error, instruction_sets, poison, run, threads
from torch import Tensor

from attention_ext import library
from attention_ext.local_attention import native, reference

SETS = [name for name in instruction_sets() if name in ("avx512_bf16", "amx")]
pytestmark = pytest.mark.skipif(
    not SETS, reason="needs AVX512_BF16 or AMX; test_avx512_emulation.py runs these tests without"
)
ALL = (10_000, 10_000, 1)
# [B, H, N, D, E], lengths, and (left, right, chunk).
CASES = {
    "one position": ((1, 1, 1, 5, 3), [1], ALL),
    "one tile": ((1, 1, 32, 32, 32), [32], ALL),
    "padded": ((3, 2, 100, 64, 64), [100, 67, 0], ALL),
    "odd sizes": ((2, 1, 97, 33, 20), [97, 3], ALL),
    "pieces": ((1, 1, 600, 32, 64), [577], ALL),
    "causal": ((1, 2, 300, 16, 48), [299], (10_000, 0, 1)),
    "window": ((2, 1, 400, 32, 32), [400, 211], (20, 50, 1)),
    "chunks": ((1, 1, 300, 8, 16), [290], (40, 7, 33)),
    "itself": ((1, 1, 70, 16, 16), [70], (0, 0, 1)),
    "largest heads": ((1, 1, 70, 256, 256), [70], ALL),
}


@pytest.fixture(params=SETS, autouse=True)
def chosen(request: pytest.FixtureRequest) -> Iterator[str]:
    """Select an instruction set with tiles."""
    yield library.instruction_set(request.param)
    library.instruction_set()


def inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> Inputs:
    *places, D, E = shape
    g = torch.Generator().manual_seed(3)
    q, k, v, grad = (torch.randn(*places, size, generator=g, dtype=torch.float64) for size in (D, D, E, E))
    return Inputs(*(x.to(dtype).double() for x in (q, k, v, grad)))


def kernel(
    lengths: Tensor, window: tuple[int, int, int], bias: Tensor | None = None
) -> Callable[..., Tensor]:
    """Return the kernel as a function of q, k and v, whose padding is poisoned."""

    def attend(*qkv: Tensor) -> Tensor:
        poisoned = (poison(x, lengths) for x in qkv)
        return native.local_attention(*poisoned, lengths, *window, first=0, bias_BN=bias)

    return attend


def dense(
    lengths: Tensor, window: tuple[int, int, int], bias: Tensor | None = None
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return PyTorch's attention with a mask as a function of q, k and v."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = torch.arange(q.shape[2])
        valid_BN = n < lengths[:, None]
        seen = reference.within(n[:, None], n, *window) & valid_BN[:, None, None, :]
        mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill(
            ~seen & valid_BN[:, None, :, None], -torch.inf
        )
        if bias is not None:
            mask = mask + bias[:, None, None, :].to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, mask) * valid_BN[:, None, :, None]

    return attend


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("biased", [False, True])
def test_errors_are_those_of_pytorch_in_bfloat16(name: str, biased: bool) -> None:
    """With addends, which frames of unequal size have, errors were 1.83 times as large for one draw of 40."""
    shape, lengths, window = CASES[name]
    p, lengths_B = inputs(shape), torch.tensor(lengths)
    generator, most = torch.Generator().manual_seed(1), 2.0 if biased else 1.5
    bias = torch.rand(shape[0], shape[2], generator=generator).bfloat16().float() * 2 if biased else None
    exact = run(dense(lengths_B, window, bias), p, torch.float64)
    theirs = run(dense(lengths_B, window, bias), p, torch.bfloat16)
    for found, other, truth in zip(
        run(kernel(lengths_B, window, bias), p, torch.bfloat16), theirs, exact, strict=True
    ):
        assert found.dtype == torch.bfloat16
        if truth.any():
            assert error(found, truth) <= most * max(error(other, truth), 0.002)
        else:  # differences of equal sums, whose order may differ: gradients of q and k in "itself"
            assert found.abs().max() < 1e-6


@pytest.mark.parametrize("count", [1, 3])  # threads with whole heads, and with shared ones
def test_bits_depend_on_the_sequence_alone(count: int) -> None:
    p, lengths = inputs((2, 2, 300, 32, 32)), torch.tensor([300, 77])
    together = run(kernel(lengths, ALL), p, torch.bfloat16)
    alone = Inputs(*(x[1:, :, :77] for x in (p.q, p.k, p.v, p.grad)))
    with threads(count):
        found = run(kernel(lengths[1:], ALL), alone, torch.bfloat16)
    check_same_bits(found, [x[1:, :, :77] for x in together])


def test_dropout_is_that_of_the_other_kernels(chosen: str) -> None:
    """Weights are dropped by a hash of seed, row and key, whatever the instruction set."""
    p, lengths = inputs((1, 2, 150, 16, 16)), torch.tensor([150])
    found = []
    for name in (chosen, "avx512"):
        library.instruction_set(name)
        torch.manual_seed(5)
        found.append(
            run(
                lambda *qkv: native.local_attention(*qkv, lengths, *ALL, first=0, dropout=0.4),
                p,
                torch.bfloat16,
            )
        )
    for one, other in zip(*found, strict=True):
        assert error(one, other.double()) < 0.01


def test_tiles_of_other_libraries_keep_their_configuration() -> None:
    """Products of oneDNN, which configures AMX for itself, alternate with ours in every layer."""
    p, lengths, weight = inputs((1, 2, 64, 32, 32)), torch.tensor([64]), torch.randn(64, 64).bfloat16()
    attend, x = kernel(lengths, ALL), torch.randn(64, 64).bfloat16()
    first = F.linear(x, weight), run(attend, p, torch.bfloat16)
    for _ in range(3):
        assert torch.equal(F.linear(x, weight), first[0])
        check_same_bits(run(attend, p, torch.bfloat16), first[1])


# [B, H, N, D, E], lengths, keys S, their lengths, clusters C.
CLUSTERED = {
    "one position": ((1, 1, 1, 5, 3), [1], 1, [1], 1),
    "padded": ((3, 2, 100, 64, 64), [100, 67, 0], 100, [100, 67, 0], 20),
    "odd sizes, cross": ((2, 2, 97, 33, 20), [97, 3], 31, [31, 7], 10),
    "many clusters": ((1, 1, 300, 8, 24), [300], 300, [290], 130),
    "empty clusters": ((1, 1, 40, 16, 16), [4], 40, [40], 39),
    "blocks": ((2, 1, 60, 32, 32), [60, 41], 2100, [2049, 1024], 40),
    "largest heads": ((1, 1, 64, 256, 256), [64], 64, [64], 8),
}


def clustered(name: str) -> Call:
    """Return a call whose inputs are exact in bfloat16."""
    (B, H, N, D, E), lengths, S, key_lengths, C = CLUSTERED[name]
    p = make("clustered", B, H, N, D, E, lengths, S, key_lengths, clusters=C)
    p.q, p.k, p.v, p.grad = (x.bfloat16().double() for x in (p.q, p.k, p.v, p.grad))
    return p


def masked(queries: Tensor, keys: Tensor) -> Callable[..., Tensor]:
    """Return PyTorch's full attention over the valid keys as a function of q, k and v, padded to one size.

    PyTorch's kernel that rounds weights to bfloat16 needs heads of one size.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        valid_BS = torch.arange(k.shape[2]) < keys[:, None].clamp(min=1)
        valid_BN = torch.arange(q.shape[2]) < queries[:, None]
        E, size = v.shape[3], max(q.shape[3], v.shape[3])
        scale, padded = q.shape[3] ** -0.5, [F.pad(x, (0, size - x.shape[3])) for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*padded, valid_BS[:, None, None], scale=scale)[..., :E]
        return out * (valid_BN & (keys > 0)[:, None])[:, None, :, None]

    return attend


@pytest.mark.parametrize("name", CLUSTERED)
def test_errors_of_clustered_attention_are_those_of_pytorch_in_bfloat16(name: str) -> None:
    """PyTorch's full attention on the same input; the clusters are the same in both types."""
    p = clustered(name)
    usual = run(masked(*p.lengths), p, torch.bfloat16), run(masked(*p.lengths), p, torch.float64)
    exact, poisoned = run(p.reference(), p, torch.float64), p.poisoned()
    found = run(poisoned.native(), poisoned, torch.bfloat16)
    for x, truth, theirs, their_truth in zip(found, exact, *usual, strict=True):
        assert x.dtype == torch.bfloat16
        if truth.any():
            assert error(x, truth) <= 1.5 * error(theirs, their_truth)
        else:  # gradients of q and k with a single key
            assert x.abs().max() < 1e-6


@pytest.mark.parametrize("count", [1, 3])  # threads with whole heads, and with shared ones
@pytest.mark.parametrize("name", ["padded", "blocks"])
def test_bits_of_clustered_attention_depend_on_the_sequence_alone(name: str, count: int) -> None:
    p = clustered(name)
    p = Call(*(x[:2] for x in (p.q, p.k, p.v, p.grad)), p.kernel, *_first_two(p))
    n, s = (int(lengths[1]) for lengths in p.lengths)
    groups, *_, clusters = p.others
    alone = Call(
        *(x[1:, :, :size] for x, size in ((p.q, n), (p.k, s), (p.v, s), (p.grad, n))),
        p.kernel,
        (p.lengths[0][1:], p.lengths[1][1:]),
        [groups[1:, :, :n], p.lengths[0][1:], p.lengths[1][1:], clusters],
    )
    together = run(p.native(), p, torch.bfloat16)
    with threads(count):
        found = run(alone.native(), alone, torch.bfloat16)
    check_same_bits(found, [x[1:, :, :size] for x, size in zip(together, (n, n, s, s), strict=True)])


def _first_two(p: Call) -> tuple[tuple[Tensor, Tensor], list[object]]:
    groups, queries, keys, clusters = p.others
    return (queries[:2], keys[:2]), [groups[:2], queries[:2], keys[:2], clusters]


def test_dropout_of_clustered_attention_is_that_of_the_other_kernels(chosen: str) -> None:
    p, found = clustered("blocks"), []
    for name in (chosen, "avx512"):
        library.instruction_set(name)
        torch.manual_seed(5)
        found.append(run(p.native(dropout=0.4), p, torch.bfloat16))
    for one, other in zip(*found, strict=True):
        assert error(one, other.double()) < 0.01


def test_weights_that_another_set_kept_are_used(chosen: str) -> None:
    p, found = clustered("padded"), []
    for backward in ("avx512", chosen):
        library.instruction_set("avx512")
        q, k, v = p.inputs(torch.bfloat16)
        out = p.native()(q, k, v)
        library.instruction_set(backward)
        out.backward(p.grad.bfloat16())
        found.append([q.grad, k.grad, v.grad])
    check_same_bits(*found)


@pytest.mark.parametrize("wrong", [torch.zeros(0), torch.zeros(2, 9, 0), torch.zeros(2, 2, 1)])
def test_kept_weights_must_be_those_of_forward(wrong: Tensor) -> None:
    """A tensor without elements once passed whatever its shape."""
    p = clustered("odd sizes, cross")
    arguments, operators = (*p.inputs(torch.bfloat16), *p.others, 0.0, None), torch.ops.attention_ext
    _, *saved, _ = operators.clustered_attention(*arguments)
    with pytest.raises(RuntimeError, match="kept must be"):
        operators.clustered_attention_backward(p.grad.bfloat16(), *arguments, *saved, wrong)


def test_clustered_attention_passes_opcheck() -> None:
    """On tiles, no weights are kept."""
    p = clustered("odd sizes, cross")
    operator = torch.ops.attention_ext.clustered_attention.default
    torch.library.opcheck(operator, (*p.inputs(torch.bfloat16), *p.others, 0.0, None, True))


@pytest.mark.parametrize("wrong", [torch.zeros(2, 8), torch.zeros(1, 9), torch.zeros(2, 9).int()])
def test_addends_have_one_number_per_key(wrong: Tensor) -> None:
    p = inputs((2, 1, 9, 4, 4))
    with pytest.raises(RuntimeError, match="bias must be"):
        kernel(torch.tensor([9, 9]), ALL, wrong)(*p.inputs(torch.float32))
