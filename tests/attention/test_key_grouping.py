"""Groups in the metric of the keys equal the oracle and the metric its definition; limiting cases."""

import emptied_clusters
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanisms import KEYS, LENGTHS, build, inputs
from torch import Tensor

from attention_ext.key_grouping.reference import key_factor, key_groups


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 40),
    key_size=st.integers(0, 40),
    dim=st.integers(1, 9),
    clusters=st.integers(1, 12),
    rank=st.integers(1, 10),
    iterations=st.integers(1, 5),
    distinct=st.integers(1, 40),
    seed=st.integers(0, 9),
)
def test_groups_equal_the_oracle(
    size: int, key_size: int, dim: int, clusters: int, rank: int, iterations: int, distinct: int, seed: int
) -> None:
    """Few distinct queries make ties and empty clusters frequent, few keys make Σ singular."""
    q = draw(3, 2, size, dim, seed=seed)[:, :, torch.arange(size) % distinct]
    k = draw(3, 2, key_size, dim, seed=seed + 10)
    lengths = torch.tensor([size, size // 2, 0])
    key_lengths = torch.tensor([key_size // 3, key_size, key_size // 2])
    groups = key_groups(q, k, lengths, key_lengths, clusters, rank, iterations)
    assert groups.dtype == torch.int32
    for b, (n, s) in enumerate(zip(lengths.tolist(), key_lengths.tolist(), strict=True)):
        assert (groups[b, :, n:] == -1).all()
        for h in range(2):
            expected = oracles.key_groups(q[b, h, :n], k[b, h, :s], clusters, rank, iterations)
            assert groups[b, h, :n].tolist() == expected


def test_clusters_that_lose_all_members_start_again() -> None:
    """They once stayed empty; now they take the point farthest from its centroid."""
    q, k, lengths, key_lengths = emptied_clusters.queries_and_keys()
    clusters, iterations = emptied_clusters.CLUSTERS, emptied_clusters.ITERATIONS
    groups = key_groups(q, k, lengths, key_lengths, clusters, 8, iterations)
    for b in range(2):
        found = groups[b, 0].tolist()
        assert found == oracles.key_groups(q[b, 0].double(), k[b, 0].double(), clusters, 8, iterations)
        assert len(set(found)) == clusters


def test_long_sequences_use_keys_at_evenly_spread_positions() -> None:
    q, k = draw(1, 1, 60, 5), draw(1, 1, 700, 5, seed=1) * torch.arange(1, 701).view(-1, 1) ** 0.5
    lengths = torch.tensor([60]), torch.tensor([690])
    groups = key_groups(q, k, *lengths, 7, 3, 3)
    assert groups[0, 0].tolist() == oracles.key_groups(q[0, 0], k[0, 0, :690], 7, 3, 3)


def test_distances_are_variances_of_the_difference_of_two_queries_logits() -> None:
    """The definition of the metric, for rank ≥ D; a lower rank never overestimates it."""
    q, k = draw(1, 1, 9, 6), draw(1, 1, 40, 6, seed=1) @ draw(6, 6, seed=2) + 3
    logits = q[0, 0] @ k[0, 0].T
    variance = (logits[:, None] - logits[None]).var(-1, correction=0)
    for rank in (6, 7, 3):
        x = q @ key_factor(k, torch.tensor([40]), rank)
        distance = (x[0, 0, :, None] - x[0, 0, None]).square().sum(-1) / 40
        if rank >= 6:
            torch.testing.assert_close(distance, variance, rtol=1e-9, atol=1e-9)
        else:
            assert (distance <= variance + 1e-9).all()


def test_few_directions_keep_most_of_the_variance() -> None:
    """Two power steps come close to an eigendecomposition on a steep spectrum."""
    spectrum = 0.6 ** torch.arange(32).double()
    k = draw(1, 8, 300, 32) @ (spectrum.sqrt()[:, None] * torch.linalg.qr(draw(32, 32, seed=3)).Q)
    factor = key_factor(k, torch.tensor([300]), 8)
    kept = factor.square().sum((-1, -2))
    at = torch.arange(128) * 300 // 128
    centred = k[:, :, at] - k[:, :, at].mean(2, keepdim=True)
    best = torch.linalg.eigvalsh(centred.mT @ centred)[..., -8:].sum(-1)
    assert (kept > 0.99 * best).all()


@pytest.mark.parametrize("name", ["clustered-5:grouping=keys", "i-clustered-5:topk=4,grouping=keys"])
@pytest.mark.parametrize("key", [0.0, 0.1])
def test_equal_keys_give_one_group_and_exact_attention(name: str, key: float) -> None:
    mechanism, full = build(name), build("full")
    q, k, v = inputs(mechanism)
    k = torch.where(k.isnan(), k, key * torch.arange(1, 7))
    groups = mechanism.clusters(q, LENGTHS, k)
    for b, n in enumerate(LENGTHS.tolist()):
        assert (groups[b, :, :n] == (torch.arange(n) if n <= 5 else 0)).all()
    torch.testing.assert_close(mechanism(q, k, v, LENGTHS), full(q, k, v, LENGTHS), rtol=0, atol=1e-12)


def test_one_key_and_no_key() -> None:
    q, lengths = draw(1, 2, 9, 4), torch.tensor([9])
    assert (key_groups(q, draw(1, 2, 1, 4), lengths, torch.tensor([1]), 3, 8, 2) == 0).all()
    assert (key_groups(q, draw(1, 2, 0, 4), lengths, torch.tensor([0]), 3, 8, 2) == 0).all()
    assert key_groups(q[:, :, :0], q, torch.tensor([0]), lengths, 3, 8, 2).shape == (1, 2, 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_infinite_input_gives_valid_groups(value: float) -> None:
    for spoilt in ("q", "k"):
        q, k = draw(1, 2, 30, 4), draw(1, 2, 30, 4, seed=1)
        (q if spoilt == "q" else k)[0, 0, 7, 2] = value
        groups = key_groups(q, k, torch.tensor([30]), torch.tensor([30]), 5, 4, 3)
        assert ((groups >= 0) & (groups < 5)).all()
        assert groups[0, 1].unique().numel() == 5


def test_only_directions_of_the_keys_count() -> None:
    """Queries differ most where keys don't, which misleads hashes."""
    k = draw(1, 1, 100, 8) * torch.tensor([3.0, 3, 0, 0, 0, 0, 0, 0])
    q = draw(1, 1, 100, 8, seed=1)
    moved = q + 50 * draw(1, 1, 100, 8, seed=2) * torch.tensor([0.0, 0, 1, 1, 1, 1, 1, 1])
    full = build("full")
    distance = {}
    for grouping in ("hash", "keys"):
        mechanism = build(f"clustered-10:grouping={grouping}")
        distance[grouping] = float(
            (mechanism.weights(moved, k) - full.weights(moved, k)).abs().sum(-1).mean()
        )
    assert distance["keys"] < 0.5 * distance["hash"]
    mechanism = build("clustered-10:grouping=keys")
    assert torch.equal(mechanism.clusters(moved, k=k), mechanism.clusters(q, k=k))


@pytest.mark.parametrize("poison", [0.0, float("nan"), float("inf"), -1e30])
@pytest.mark.parametrize("name", KEYS)
def test_groups_do_not_depend_on_padding_or_the_batch(name: str, poison: float) -> None:
    mechanism = build(name)
    q, k, _ = inputs(mechanism, poison=poison)
    groups = mechanism.clusters(q, LENGTHS, k)
    longer = [torch.nn.functional.pad(x, (0, 0, 0, 700), value=poison) for x in (q, k)]
    assert torch.equal(mechanism.clusters(longer[0], LENGTHS, longer[1])[:, :, :31], groups)
    for b, n in enumerate(LENGTHS.tolist()):
        if n:
            alone = mechanism.clusters(q[b : b + 1, :, :n], k=k[b : b + 1, :, :n])
            assert torch.equal(groups[b : b + 1, :, :n], alone)


def test_fewer_clusters_get_more_directions_and_iterations() -> None:
    q, k = torch.randn(2, 1, 2, 300, 32, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([300])
    for clusters, rank, iterations in ((49, 12, 4), (50, 8, 3)):
        mechanism = build(f"clustered-{clusters}:grouping=keys")
        expected = key_groups(q, k, lengths, lengths, clusters, rank, iterations)
        assert mechanism.clusters(q, k=k).equal(expected)


def test_clusters_without_keys_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"'clustered-3:grouping=keys' .* expected clusters\(q, lengths, k\)"
    ):
        build("clustered-3:grouping=keys").clusters(draw(1, 1, 5, 4))
