"""Every mechanism without parameters equals its oracle on batches of mixed lengths."""

import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanisms import CROSS, FURTHER, LENGTHS, QUERY_KEY, C, build, inputs, oracle_weights
from quick import quick

from asr.attention.multihead import shared_keys
from asr.lengths import keep_mask

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


def expect(mechanism, q, k, lengths):
    """Return the oracle's weights for a padded batch."""
    expected = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.float64)
    for b, n in enumerate(lengths.tolist()):
        for h in range(q.shape[1]):
            if n:
                expected[b, h, :n, :n] = oracle_weights(mechanism, q[b, h, :n], k[b, h, :n])
    return expected


@pytest.mark.parametrize("dtype", quick([torch.float32, torch.float64], lambda dtype: dtype == torch.float64))
@pytest.mark.parametrize("name", QUERY_KEY)
def test_output_and_weights_equal_the_oracle(name: str, dtype: torch.dtype) -> None:
    mechanism = build(name)
    q, k, v = inputs(mechanism, dtype=dtype)
    expected = expect(mechanism, q, k, LENGTHS)
    out = mechanism(q, k, v, LENGTHS)
    assert out.dtype == dtype
    close = {"rtol": 0, "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(out.double(), expected @ v.double().nan_to_num(), **close)
    weights = mechanism.weights(q, k, LENGTHS)
    torch.testing.assert_close(weights.double(), expected, **close)
    if name in FURTHER:  # whose weights may be negative, and sum to another number
        return
    rows = keep_mask(LENGTHS, q.shape[2]).to(dtype).unsqueeze(1).expand(weights.shape[:3])
    torch.testing.assert_close(weights.sum(-1), rows, **close)
    assert (weights >= 0).all()


@pytest.mark.parametrize("name", [*CROSS, "linear"])
def test_cross_attention_equals_the_oracle(name: str) -> None:
    mechanism = build(name)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(4, 2, 11, 6, generator=generator, dtype=torch.float64)
    k = torch.randn(4, 2, 17, 6, generator=generator, dtype=torch.float64)
    v = torch.randn(4, 2, 17, 3, generator=generator, dtype=torch.float64)
    query_lengths, key_lengths = torch.tensor([11, 7, 0, 5]), torch.tensor([2, 17, 9, 0])
    out = mechanism(q, k, v, query_lengths=query_lengths, key_lengths=key_lengths)
    for b, (n, s) in enumerate(zip(query_lengths.tolist(), key_lengths.tolist(), strict=True)):
        expected = torch.zeros(2, 11, 3, dtype=torch.float64)
        for h in range(2):
            if n and s:
                expected[h, :n] = oracle_weights(mechanism, q[b, h, :n], k[b, h, :s]) @ v[b, h, :s]
        torch.testing.assert_close(out[b], expected, rtol=0, atol=1e-12)
    weights = mechanism.weights(q, k, query_lengths=query_lengths, key_lengths=key_lengths)
    torch.testing.assert_close(weights @ v, out, rtol=0, atol=1e-12)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(QUERY_KEY),
    size=st.integers(1, 40),
    key_size=st.integers(1, 40),
    heads=st.integers(1, 3),
    dims=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    data=st.data(),
)
def test_random_shapes_equal_the_oracle(
    name: str, size: int, key_size: int, heads: int, dims: tuple, data
) -> None:
    mechanism = build(name)
    if not mechanism.cross_attention:
        key_size = size
    lengths = data.draw(st.lists(st.integers(0, size), min_size=1, max_size=3))
    key_lengths = (
        [data.draw(st.integers(0, key_size)) for _ in lengths] if mechanism.cross_attention else lengths
    )
    generator = torch.Generator().manual_seed(size * 41 + key_size)
    shape = (len(lengths), heads)
    q = torch.randn(*shape, size, dims[0], generator=generator, dtype=torch.float64)
    k = torch.randn(*shape, key_size, dims[0], generator=generator, dtype=torch.float64)
    k = shared_keys(q) if mechanism.needs_shared_keys else k
    v = torch.randn(*shape, key_size, dims[1], generator=generator, dtype=torch.float64)
    given_lengths = torch.tensor(lengths)
    if mechanism.cross_attention:
        out = mechanism(q, k, v, query_lengths=given_lengths, key_lengths=torch.tensor(key_lengths))
    else:
        out = mechanism(q, k, v, given_lengths)
    for b, (n, s) in enumerate(zip(lengths, key_lengths, strict=True)):
        assert (out[b, :, n:] == 0).all()
        if n and s:
            expected = oracle_weights(mechanism, q[b, 0, :n], k[b, 0, :s]) @ v[b, 0, :s]
            torch.testing.assert_close(out[b, 0, :n], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", QUERY_KEY)
def test_huge_logits_and_identical_queries(name: str) -> None:
    mechanism = build(name)
    lengths = torch.tensor([31, 13])
    q, k, v = inputs(mechanism, lengths, scale=1e4)
    # 13 identical queries and keys, so that all clusters but one are empty.
    q[1], k[1] = q[1, :, :1], k[1, :, :1]
    out = mechanism(q.float(), k.float(), v.float(), lengths)
    expected = expect(mechanism, q.float(), k.float(), lengths) @ v.nan_to_num()
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=5e-2)  # float32 logits of ±1e4


@pytest.mark.parametrize("name", [f"clustered-{C}", f"i-clustered-{C}:topk=2"])
def test_gradients_equal_those_of_dense_weights(name: str) -> None:
    """Autograd through weights that are built densely gives the same gradients."""
    mechanism = build(name)
    leaves = [x.requires_grad_() for x in inputs(mechanism, torch.tensor([31]))]
    mechanism(*leaves).sin().sum().backward()
    q, k, v = (x.detach().clone().requires_grad_() for x in leaves)
    groups = mechanism.clusters(q)[0]
    outs = []
    for h in range(2):
        members = torch.nn.functional.one_hot(groups[h].long(), C).double()
        centroids = (members.T @ q[0, h]) / members.sum(0).unsqueeze(1)
        scale = q.shape[-1] ** -0.5
        rows = (scale * centroids @ k[0, h].T).softmax(-1)
        weights = rows[groups[h].long()]
        if name.startswith("i-"):
            chosen = torch.zeros(C, 31, dtype=torch.bool).scatter(1, rows.topk(2, dim=1).indices, True)
            chosen = chosen[groups[h].long()]
            mass = (weights * chosen).sum(-1, keepdim=True)
            exact = (scale * q[0, h] @ k[0, h].T).masked_fill(~chosen, -torch.inf).softmax(-1)
            weights = torch.where(chosen, mass * exact, weights)
        outs.append(weights @ v[0, h])
    torch.stack(outs).sin().sum().backward()
    for leaf, other in zip(leaves, (q, k, v), strict=True):
        torch.testing.assert_close(leaf.grad, other.grad, rtol=0, atol=1e-12)


def test_the_oracle_of_full_attention_equals_torch_softmax() -> None:
    """A check of the oracle itself, so that the same mistake can't hide in oracle and implementation."""
    q, k = torch.randn(5, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(oracles.full(q, k), (q @ k.T / 3**0.5).softmax(-1))
