"""LSH attention: buckets, chunks and rounds."""

import pytest
import torch
from mechanisms import build

from asr.attention.multihead import shared_keys
from asr.errors import UserError
from attention_ext import why_unavailable


def shared(n: int, d: int = 8, seed: int = 0, batch: int = 1) -> tuple[torch.Tensor, ...]:
    """Return queries and keys [batch, 2, n, d], and values [batch, 2, n, 5]."""
    generator = torch.Generator().manual_seed(seed)
    q, v = (torch.randn(batch, 2, n, d, generator=generator, dtype=torch.float64) for d in (d, 5))
    return q, shared_keys(q), v


def test_buckets_are_even_and_depend_on_direction_only() -> None:
    mechanism = build("lsh-2:buckets=16")
    _, k, _ = shared(4000, d=32)
    buckets = mechanism.hash(k, torch.tensor([4000])).long()
    counts = torch.nn.functional.one_hot(buckets, 16).sum(3)
    assert counts.min() > 80  # the expected count is 250
    assert counts.max() < 750
    assert not torch.equal(buckets[:, :, 0], buckets[:, :, 1])
    assert torch.equal(buckets, mechanism.hash(3.0 * k, torch.tensor([4000])).long())
    opposite = mechanism.hash(-k, torch.tensor([4000]))
    assert torch.equal(opposite, (buckets + 8) % 16)


def test_near_vectors_collide_more_often_than_far_ones() -> None:
    mechanism = build("lsh-8:buckets=16")
    _, k, _ = shared(500, d=16)
    other = torch.randn(k.shape, generator=torch.Generator().manual_seed(9), dtype=k.dtype)
    lengths = torch.tensor([500])
    same = [(mechanism.hash(k + e * other, lengths) == mechanism.hash(k, lengths)) for e in (0.1, 0.5, 2.0)]
    rates = [float(x.double().mean()) for x in same]
    assert rates[0] > 0.8
    assert rates[0] > rates[1] > rates[2]


@pytest.mark.parametrize("name", ["lsh-1", "lsh-4", "lsh-4:chunk=16"])
def test_a_window_of_all_positions_equals_full_attention_without_the_diagonal(name: str) -> None:
    """A key counts once, however many rounds make it visible."""
    q, k, v = shared(32)
    weights = build(name).weights(q, k)
    logits = q @ k.mT / 8**0.5
    expected = logits.masked_fill(torch.eye(32, dtype=torch.bool), -torch.inf).softmax(-1)
    if name == "lsh-4:chunk=16":  # in no round does the first chunk attend to the second
        assert ((weights == 0) | (weights - expected > -1e-12)).all()
        return
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(build(name)(q, k, v), expected @ v, rtol=0, atol=1e-12)


def test_a_position_without_other_keys_attends_to_itself() -> None:
    # With chunks of one, the position that is first in both rounds has no other key.
    mechanism = build("lsh-2:chunk=1")
    q, k, v = shared(2, seed=3)
    one = mechanism(q[:, :, :1], k[:, :, :1], v[:, :, :1])
    torch.testing.assert_close(one, v[:, :, :1])
    torch.testing.assert_close(mechanism.weights(q, k) @ v, mechanism(q, k, v))
    assert mechanism.weights(q, k).diagonal(dim1=-2, dim2=-1).max() == 1.0


def test_more_rounds_approach_shared_full() -> None:
    q, k, _ = shared(512, d=16)
    q, k = 3 * q, k
    full = build("shared-full").weights(q, k)
    full = full * (1 - torch.eye(512, dtype=full.dtype))
    full = full / full.sum(-1, keepdim=True)
    errors = [
        float((build(f"lsh-{rounds}").weights(q, k) - full).abs().sum(-1).mean()) for rounds in (1, 4, 16)
    ]
    assert errors[0] > errors[1] > errors[2]


def test_padding_longer_than_a_chunk_changes_nothing() -> None:
    mechanism = build("lsh-3:chunk=8,buckets=8")
    q, k, v = shared(200, seed=5)
    lengths = torch.tensor([43])
    weights = mechanism.weights(q, k, lengths)[:, :, :43, :43]
    torch.testing.assert_close(weights, mechanism.weights(q[:, :, :43], k[:, :, :43]), rtol=0, atol=1e-12)
    torch.testing.assert_close(mechanism(q, k, v, lengths)[:, :, :43], weights @ v[:, :, :43])


@pytest.mark.skipif(why_unavailable("cpu") is not None, reason="no compiled kernels")
def test_native_equals_the_reference() -> None:
    q, k, v = shared(150, d=16, seed=7, batch=2)
    lengths = torch.tensor([150, 71])
    native = build("lsh-3:buckets=16", backend="native")
    assert native.backend.on("cpu") == "native"
    assert torch.equal(native.hash(k, lengths), build("lsh-3:buckets=16").hash(k, lengths))
    found, expected = (m(q, k, v, lengths) for m in (native, build("lsh-3:buckets=16")))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(native.weights(q, k, lengths) @ v, expected, rtol=0, atol=1e-12)


def test_queries_and_keys_must_coincide() -> None:
    q, k, _ = shared(6)
    with pytest.raises(UserError, match="self-attention only"):
        build("lsh-1")(q, k[:, :, :5], k[:, :, :5])
    with pytest.raises(UserError, match="self-attention only"):
        build("lsh-1")(q, k, k, query_lengths=torch.tensor([6]), key_lengths=torch.tensor([5]))
