"""Mechanisms with a gated bias of distances, against equations written out for every pair of positions."""

import pytest
import torch
from mechanisms import two_iterations
from quick import quick
from torch import Tensor

from asr.attention import gated_bias
from asr.attention.gated_bias import biased_attention
from asr.attention.softmax import SoftmaxMechanism
from asr.attention.table import build_mechanism
from attention_ext.gated_bias import GatedBias

NAMES = [
    "full",
    "full:causal=true",
    "oracle-top-5",
    "local-6",
    "local-3:global=2",
    "local-0:global=10",
    "local-4:right=1",
    "local-3:right=2,chunk=5",
    "clustered-4",
    "clustered-4:grouping=keys",
    "i-clustered-4:topk=5",
    "i-clustered-4:topk=5,grouping=keys",
    "near-4:topk=5,window=2",
]
LENGTHS = torch.tensor([37, 20, 1, 0])
B, H, N, D = 4, 2, 37, 8


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, GatedBias]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = 2 * torch.randn(3, B, H, N, D, generator=generator, dtype=dtype)
    gate = torch.rand(B, H, N, generator=generator, dtype=dtype)
    return q, k, v, GatedBias(gate, 3 * torch.randn(H, 2 * N - 1, generator=generator, dtype=dtype))


def build(name: str) -> SoftmaxMechanism:
    mechanism = build_mechanism(name, "reference").eval()
    assert isinstance(mechanism, SoftmaxMechanism)
    return mechanism


def visible(name: str, i: int, j: int) -> bool:
    """Whether query i may see key j, apart from the choice of the best keys."""
    match name:
        case "full:causal=true":
            return j <= i
        case "local-6":
            return abs(i - j) <= 6
        case "local-4:right=1":
            return i - 4 <= j <= i + 1
        case "local-3:right=2,chunk=5":
            return i // 5 * 5 - 3 <= j <= i // 5 * 5 + 4 + 2
        case "local-3:global=2":
            return abs(i - j) <= 3 or min(i, j) < 2
        case "local-0:global=10":
            return i == j or min(i, j) < 10
    return True


def dense_weights(name: str, q: Tensor, k: Tensor, bias: GatedBias, groups: Tensor | None) -> Tensor:
    """Return the weights of one head and sequence without padding, [n, n], one pair at a time."""
    n = len(q)
    logits = torch.tensor(
        [
            [
                float(q[i] @ k[j]) / D**0.5 + float(bias.gate_BHN[i] * bias.bias_HR[j - i + N - 1])
                if visible(name, i, j)
                else -torch.inf
                for j in range(n)
            ]
            for i in range(n)
        ],
        dtype=q.dtype,
    )
    if name == "oracle-top-5":
        best = logits >= logits.sort(dim=-1, descending=True).values[:, min(5, n) - 1 :][:, :1]
        logits = logits.masked_fill(~best, -torch.inf)
    if groups is None:
        return logits.softmax(-1)
    weights = torch.zeros_like(logits)
    for group in groups.unique():
        members = groups == group
        shared = logits[members].mean(0).softmax(-1)
        weights[members] = shared
        if name.startswith("near"):
            place = torch.arange(n)
            exact = (place - place.unsqueeze(-1)).abs() <= 2
            exact[:, shared.topk(min(5, n)).indices] = True
            weights[members] = torch.where(exact, logits, logits[members].mean(0)).softmax(-1)[members]
        if name.startswith("i-"):
            top = shared.topk(min(5, n)).indices
            weights[members.nonzero(), top] = shared[top].sum() * logits[members][:, top].softmax(-1)
    return weights


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [False, True])
def test_outputs_follow_the_equations_with_any_padding(
    name: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gated_bias, "CHUNK", 7)
    q, k, v, bias = inputs()
    mechanism = build(name)
    for x in (q, k, v, bias.gate_BHN):
        for own, length in zip(x, LENGTHS.tolist(), strict=True):
            own[:, length:] = torch.nan
    with torch.set_grad_enabled(training):
        out = biased_attention(mechanism, q, k, v, bias, LENGTHS)
    groups = mechanism.clusters(q, LENGTHS, k) if "clustered" in name or "near" in name else None  # type: ignore[operator]
    for b, length in enumerate(LENGTHS.tolist()):
        assert not out[b, :, length:].any()
        for h in range(H if length else 0):
            own = GatedBias(bias.gate_BHN[b, h], bias.bias_HR[h])
            own_groups = None if groups is None else groups[b, h, :length]
            weights = dense_weights(name, q[b, h, :length], k[b, h, :length], own, own_groups)
            expected = weights @ v[b, h, :length]
            torch.testing.assert_close(out[b, h, :length], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_bias_it_is_the_mechanism_itself(name: str) -> None:
    q, k, v, bias = inputs()
    mechanism = build(name)
    found = biased_attention(
        mechanism, q, k, v, GatedBias(torch.zeros_like(bias.gate_BHN), bias.bias_HR), LENGTHS
    )
    torch.testing.assert_close(found, mechanism(q, k, v, LENGTHS), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", quick(NAMES, NAMES[::4].__contains__))
def test_gradients(name: str) -> None:
    mechanism = build(two_iterations(name))
    q, k, v, bias = inputs()
    # One sequence with padding: the mechanism runs twice for each number, and several are as each alone.
    size, lengths = 7, torch.tensor([6])
    tensors = [x[:1, :1, :size, :3].clone().requires_grad_() for x in (q, k, v)]
    tensors.append(bias.gate_BHN[:1, :1, :size].clone().requires_grad_())
    tensors.append(bias.bias_HR[:1, : 2 * size - 1].clone().requires_grad_())

    def attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, values: Tensor) -> Tensor:
        return biased_attention(mechanism, q, k, v, GatedBias(gate, values), lengths)

    assert torch.autograd.gradcheck(attend, tensors)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_as_exact_as_its_input(name: str) -> None:
    """Logits and sums are float32; only the inputs and the output are rounded."""
    q, k, v, bias = inputs(torch.float32)
    q, k, v = (x.bfloat16() for x in (q, k, v))
    mechanism = build(name)
    found = biased_attention(mechanism, q, k, v, bias, LENGTHS)
    assert found.dtype == torch.bfloat16
    expected = biased_attention(mechanism, q.float(), k.float(), v.float(), bias, LENGTHS)
    torch.testing.assert_close(found, expected.bfloat16(), rtol=0, atol=0.02)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(0, H, 5), (2, H, 0)])
def test_empty_input(name: str, shape: tuple[int, int, int]) -> None:
    q = torch.zeros(*shape, D)
    bias = GatedBias(torch.zeros(shape), torch.zeros(H, max(0, 2 * shape[2] - 1)))
    lengths = torch.zeros(shape[0], dtype=torch.int64)
    assert biased_attention(build(name), q, q, q, bias, lengths).shape == q.shape


@pytest.mark.parametrize("name", NAMES)
def test_dropout_zeroes_or_doubles_weights_in_training(name: str) -> None:
    q, k, _, bias = inputs()
    identity = torch.eye(N, dtype=q.dtype).expand(B, H, N, N)
    mechanism = build_mechanism(name, "reference", dropout=0.5)
    assert isinstance(mechanism, SoftmaxMechanism)
    weights = biased_attention(mechanism.eval(), q, k, identity, bias, LENGTHS)
    torch.manual_seed(0)
    drawn = biased_attention(mechanism.train(), q, k, identity, bias, LENGTHS)
    dropped = (drawn == 0) & (weights > 0)
    torch.testing.assert_close(drawn, torch.where(dropped, 0.0, 2 * weights), rtol=0, atol=1e-12)
    assert 0.4 < dropped.sum() / (weights > 0).sum() < 0.6
