"""What is particular to the kernels of near-field attention: sums over far keys without cancellation."""

from typing import Any

import pytest
import torch
from attention_calls import Call, make
from kernel_cases import check_accuracy, check_same_bits, needs_kernels, run, threads
from quick import quick
from torch import Tensor

from attention_ext.clusters.reference import centroid_scores, membership
from attention_ext.improved_clustered_attention.reference import top_keys
from attention_ext.near_attention.reference import near_weights

pytestmark = needs_kernels
N = 300


def diagonal(sign: int, clusters: int, topk: int, window: int) -> Call:
    """Return a call whose queries have the logit ±30 on the keys at their own positions."""
    p = make("near", 1, 2, N, 64, 64, clusters=clusters, topk=topk, window=window)
    p.q = p.q / p.q.norm(dim=-1, keepdim=True) * 240**0.5
    p.k = sign * p.q
    return p


def peaked(topk: int, window: int, clusters: int = 4) -> Call:
    """Return a call in which queries of opposite clusters' means lie where these means have all their mass.

    The centroids' logits are 30 on the keys 100 … 108; the queries 96, 100, 104 and 108 have −30 there. What
    their clusters give to far keys lies within their windows, but for a share of 1e-13.
    """
    p = make("near", 1, 2, N, 8, 8, clusters=clusters, topk=topk, window=window)
    p.others[0] = (torch.arange(N) % clusters).int().expand(1, 2, N).clone()
    p.q, p.k = 0.1 * p.q, 0.1 * p.k
    p.q[..., 0] = 1
    p.k[:, :, 100:109, 0] = 30 * 8**0.5
    p.q[:, :, [96, 100, 104, 108], 0] = -1
    return p


def cancelling(p: Call) -> Tensor:
    """Return whether a query's weights sum to less than a quarter of what its cluster gives to far keys."""
    groups, lengths, clusters, topk, window = p.others
    members = membership(groups, lengths, clusters, torch.float64)
    scores = centroid_scores(p.q, p.k, members, lengths, lengths)
    chosen, _ = top_keys(scores, lengths, topk)
    far = (members @ scores.masked_fill(chosen, -torch.inf).logsumexp(-1).clamp(min=-1e9).unsqueeze(-1))[
        ..., 0
    ]
    place = torch.arange(N)
    near = (members @ chosen.double() > 0) | ((place - place.unsqueeze(-1)).abs() <= window)
    total = torch.where(near, p.q @ p.k.mT / p.q.shape[-1] ** 0.5, members @ scores).logsumexp(-1)
    return far - total > torch.tensor(4.0).log()


def check(p: Call, most: dict[torch.dtype, float], results: list[Tensor] | None = None) -> None:
    """Compare with float64, relative to the largest terms, because saturated weights have no slope.

    Args:
        p: call.
        most: compared types, with the allowed error beyond twice the reference's.
        results: output and gradients; those of the CPU kernels if None.
    """
    exact = run(p.reference(), p, torch.float64)
    scale = p.q.shape[-1] ** -0.5
    keys = scale * float(p.k.norm(dim=-1).max()), scale * float(p.q.norm(dim=-1).max())
    total = float(p.grad.norm())
    largest = float(exact[0].norm()), total * keys[0], total * keys[1], total
    for dtype, limit in most.items():
        theirs = exact if dtype == torch.float64 else run(p.reference(), p, dtype)
        ours = run(p.native(), p, dtype) if results is None else results
        for found, other, truth, size in zip(ours, theirs, exact, largest, strict=True):
            assert found.isfinite().all()
            allowed = 2 * float((other.double() - truth).norm()) + limit * size
            assert float((found.double() - truth).norm()) <= allowed


# Some keys near; K + window ≥ N; a window of all keys.
SIZES = [(32, 16), (1, 0), (290, 10), (1, 299)]


@pytest.mark.hardest(clusters=[5])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize(("topk", "window"), SIZES)
@pytest.mark.parametrize("clusters", quick([1, 5, N], lambda clusters: clusters == 5))
@pytest.mark.parametrize("sign", quick([1, -1], lambda sign: sign == 1))
def test_logits_of_thirty_on_the_diagonal(sign: int, clusters: int, topk: int, window: int) -> None:
    """With a cluster of all, a few, and clusters of one member."""
    p = diagonal(sign, clusters, topk, window)
    if clusters == N:
        p.others[0] = torch.arange(N, dtype=torch.int32).expand(1, 2, N).clone()
    check(p, {torch.float64: 1e-14, torch.float32: 1e-7})


PEAKED = [(2, 16), (8, 16), (2, 3)]


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize(("topk", "window"), PEAKED)
def test_a_window_with_all_that_a_cluster_gives_to_far_keys(topk: int, window: int) -> None:
    p = peaked(topk, window)
    assert cancelling(p).any()  # else the test is vacuous
    check(p, {torch.float64: 1e-14, torch.float32: 2e-7})
    groups, lengths, *sizes = p.others
    weights = near_weights(p.q, p.k, groups, lengths, *sizes)
    torch.testing.assert_close(p.native()(*p.inputs(torch.float64)), weights @ p.v, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("each_set")
def test_gradients_of_rescued_queries() -> None:
    """In float64, to the last digits: no gradient is a difference of large numbers either."""
    p = peaked(2, 16)
    check_accuracy(p.native(), p.reference(), p, torch.float64)


def test_rescued_queries_have_the_same_bits_with_any_threads_and_padding() -> None:
    p = peaked(2, 16)
    expected = run(p.native(), p, torch.float32)
    with threads(3):
        check_same_bits(run(p.native(), p, torch.float32), expected)
    longer: dict[str, Any] = {
        "q": (0, 0, 0, 50),
        "k": (0, 0, 0, 50),
        "v": (0, 0, 0, 50),
        "grad": (0, 0, 0, 50),
    }
    padded = {
        name: torch.nn.functional.pad(getattr(p, name), pad, value=torch.nan) for name, pad in longer.items()
    }
    others = [torch.nn.functional.pad(p.others[0], (0, 50), value=-1), *p.others[1:]]
    more = Call(**padded, kernel="near", lengths=p.lengths, others=others)
    check_same_bits([x[:, :, :N] for x in run(more.native(), more, torch.float32)], expected)


@pytest.mark.parametrize("dropout", [0.2, 0.7])
def test_dropout_of_rescued_queries(dropout: float) -> None:
    """The output is linear in v, so that ⟨out, grad⟩ = ⟨v, dv⟩; weights are zeroed or scaled."""
    p = peaked(2, 16)
    plain = near_weights(p.q, p.k, *p.others[:2], *p.others[2:])
    p.v, p.grad = (torch.eye(N, dtype=torch.float64).expand(1, 2, N, N).clone() for _ in range(2))
    torch.manual_seed(3)
    out, _, _, grad_v = run(p.native(dropout=dropout), p, torch.float64)
    assert abs(float((out * p.grad).sum()) - float((p.v * grad_v).sum())) < 1e-10
    kept = out.abs() > 1e-9 * plain.amax(-1, keepdim=True)
    rescued = cancelling(p)
    assert rescued.any()
    torch.testing.assert_close(out[rescued][kept[rescued]], plain[rescued][kept[rescued]] / (1 - dropout))
    assert abs(float(kept[rescued].double().mean()) - 1 + dropout) < 0.05


@pytest.mark.slow
def test_gradcheck_of_rescued_queries_with_dropout() -> None:
    p = peaked(2, 16)
    inside = slice(90, 120)
    groups, lengths = p.others[0][..., inside].contiguous(), torch.tensor([30])
    leaves = [x[:, :1, inside].clone().requires_grad_() for x in (p.q, p.k, p.v)]
    small = Call(
        *leaves, p.grad[:, :1, inside], "near", (lengths, lengths), [groups[:, :1], lengths, 4, 2, 8]
    )

    def seeded(*inputs: Tensor) -> Tensor:
        torch.manual_seed(11)
        return small.native(dropout=0.4)(*inputs)

    assert torch.autograd.gradcheck(seeded, leaves, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize(("window", "kept"), [(16, True), (120, True), (121, False)])
def test_kept_and_recomputed_scores_agree(window: int, kept: bool) -> None:
    """Backward recomputes what forward did not keep; windows of more than 256 keys are never kept."""
    p = make("near", 2, 2, 300, 33, 20, [300, 131], clusters=9, window=window)
    ops, inputs = torch.ops.attention_ext, [x.detach() for x in p.inputs(torch.float32)]
    groups, lengths, clusters, *_ = p.others
    results = []
    for keep in (True, False):
        out, *saved = ops.near_attention(*inputs, *p.others, 0.0, None, keep)
        assert (saved[-1].numel() > 0) == (keep and kept)
        sizes = (groups, lengths, clusters, window, 0.0, None)
        grads = ops.near_attention_backward(p.grad.float(), *inputs, *sizes, out, *saved)
        results.append([out, *grads])
    check_same_bits(*results)
