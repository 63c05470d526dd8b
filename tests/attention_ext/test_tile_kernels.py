"""Local attention on tiles of bfloat16, against float64 and beside PyTorch's attention in bfloat16."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
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
    shape, lengths, window = CASES[name]
    p, lengths_B = inputs(shape), torch.tensor(lengths)
    bias = torch.rand(shape[0], shape[2]).bfloat16().float() * 2 if biased else None
    exact = run(dense(lengths_B, window, bias), p, torch.float64)
    theirs = run(dense(lengths_B, window, bias), p, torch.bfloat16)
    for found, other, truth in zip(
        run(kernel(lengths_B, window, bias), p, torch.bfloat16), theirs, exact, strict=True
    ):
        assert found.dtype == torch.bfloat16
        if truth.any():
            assert error(found, truth) <= 1.5 * max(error(other, truth), 0.002)
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


@pytest.mark.parametrize("wrong", [torch.zeros(2, 8), torch.zeros(1, 9), torch.zeros(2, 9).int()])
def test_addends_have_one_number_per_key(wrong: Tensor) -> None:
    p = inputs((2, 1, 9, 4, 4))
    with pytest.raises(RuntimeError, match="bias must be"):
        kernel(torch.tensor([9, 9]), ALL, wrong)(*p.inputs(torch.float32))
