"""What is particular to the kernels of clustered and improved clustered attention."""

from dataclasses import replace

import pytest
import torch
from attention_calls import KERNELS, Call, make
from kernel_cases import check_accuracy, check_same_bits, error, needs_kernels, run
from torch import Tensor

from attention_ext.autograd import needs_gradient
from attention_ext.improved_clustered_attention.reference import top_keys

pytestmark = needs_kernels
both = pytest.mark.parametrize("kernel", ["clustered", "improved"])


@both
def test_eager_calls_use_the_registered_derivative(kernel: str) -> None:
    """Eager calls bypass PyTorch's registry, which graphs and direct operator calls use."""
    p = make(kernel, 2, 1, 17, 5, 3, [17, 11], 13, [13, 9])
    operator = getattr(torch.ops.attention_ext, KERNELS[kernel][0].__name__)
    registered = run(lambda *inputs: operator(*inputs, *p.others, 0.0, None, True)[0], p, torch.float32)
    check_same_bits(run(p.native(), p, torch.float32), registered)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@both
@pytest.mark.parametrize(
    ("N", "lengths", "S", "key_lengths", "clusters"),
    [(97, [97, 0], 31, [31, 7], 10), (40, [40, 5, 6], 33, [31, 32, 33], 5), (300, [299], 2600, [2599], 40)],
)
def test_kept_and_recomputed_weights_agree(
    N: int, lengths: list[int], S: int, key_lengths: list[int], clusters: int, kernel: str, dropout: float
) -> None:
    """Backward recomputes what forward did not keep."""
    p = make(kernel, len(lengths), 2, N, 33, 20, lengths, S, key_lengths, clusters=clusters)
    name = KERNELS[kernel][0].__name__
    forward, backward = (getattr(torch.ops.attention_ext, name + kind) for kind in ("", "_backward"))
    inputs = [x.detach() for x in p.inputs(torch.float64)]
    options = (dropout, torch.tensor([7]) if dropout else None)
    results = []
    for keep in (True, False):
        out, *saved = forward(*inputs, *p.others, *options, keep)
        assert (saved[-1].numel() > 0) == keep
        saved += [out] if kernel == "improved" else []
        results.append([out, *backward(p.grad, *inputs, *p.others[:4], *options, *saved)])
    for kept, again in zip(*results, strict=True):
        assert error(kept, again) < 1e-12


def test_weights_are_kept_only_for_a_backward_pass() -> None:
    inputs = make("clustered", 1, 1, 50, 16, 16).inputs(torch.float32)
    with torch.no_grad():
        assert not needs_gradient(*inputs)
    assert needs_gradient(*inputs)
    assert not needs_gradient(*(x.detach() for x in inputs))


def chosen_keys(p: Call) -> Tensor:
    """Return the top keys of the clusters."""
    operator = torch.ops.attention_ext.improved_clustered_attention
    return operator(*p.inputs(torch.float32), *p.others, 0.0, None)[4]


@pytest.mark.usefixtures("each_set")
def test_equal_logits_select_the_lowest_positions() -> None:
    """Zero queries make all logits equal, more of them than a candidate list holds."""
    p = make("improved", 1, 1, 20, 8, 8, S=1500, clusters=3, topk=32)
    p.q.zero_()
    top = chosen_keys(p)
    assert torch.equal(top, torch.arange(32, dtype=torch.int32).expand_as(top))


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("topk", [1, 5, 32, 100])
def test_top_keys_have_the_highest_logits(topk: int) -> None:
    """Logits are small integers: exact in any summation order, with many ties."""
    p = make("improved", 1, 2, 40, 4, 4, S=1300, clusters=1, topk=topk)
    p.q, p.k = torch.ones_like(p.q), p.k.mul(3).round()
    _, expected = top_keys(p.k.sum(-1).unsqueeze(2), p.lengths[1], topk)
    assert torch.equal(chosen_keys(p).long(), expected)


@both
def test_identical_queries(kernel: str) -> None:
    """All queries in one cluster: empty clusters must not cause a division by zero."""
    p = make(kernel, 1, 1, 200, 8, 8, S=60, clusters=20)
    p.q = p.q[:, :, :1].expand_as(p.q).clone()
    p.others[0].zero_()
    check_accuracy(p.native(), p.reference(), p, torch.float64)


@both
def test_padding_beyond_a_block_of_keys_changes_no_bit(kernel: str) -> None:
    """Blocks of keys once depended on the padded size. 8,193 keys are one more than 8 blocks of 1,024."""
    long = make(kernel, 1, 1, 50, 8, 8, S=20_000, key_lengths=[8_193])
    short = replace(long, k=long.k[:, :, :8_193], v=long.v[:, :, :8_193])
    padded, alone = (run(p.native(), p, torch.float32) for p in (long, short))
    check_same_bits([x[:, :, : len(y[0, 0])] for x, y in zip(padded, alone, strict=True)], alone)
