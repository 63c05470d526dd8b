"""Properties of improved clustered attention: Proposition 2 (or 3), limiting cases, ties and dropout."""

import pytest
import torch
from mechanisms import LENGTHS, build, inputs


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_proposition_2_holds(scale: float) -> None:
    """No row is further from full attention in L1 than that of clustered attention with the same clusters."""
    generator = torch.Generator().manual_seed(3)
    q = scale * torch.randn(2, 3, 512, 16, generator=generator, dtype=torch.float64)
    k = torch.randn(2, 3, 512, 16, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([512, 389])
    full = build("full").weights(q, k, lengths)
    clustered, improved = build("clustered-25"), build("i-clustered-25")
    assert torch.equal(clustered.clusters(q, lengths), improved.clusters(q, lengths))
    far = (clustered.weights(q, k, lengths) - full).abs().sum(-1)
    near = (improved.weights(q, k, lengths) - full).abs().sum(-1)
    assert (near <= far + 1e-12).all()
    assert near.mean() < 0.95 * far.mean()


@pytest.mark.parametrize(
    "name", ["i-clustered-31:topk=31", "i-clustered-3:topk=31", "i-clustered-1:topk=64", "clustered-31"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_full_when_clusters_or_keys_reach_the_length(name: str, dtype: torch.dtype) -> None:
    mechanism, full = build(name), build("full")
    q, k, v = inputs(mechanism, dtype=dtype)
    torch.testing.assert_close(mechanism(q, k, v, LENGTHS), full(q, k, v, LENGTHS), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        mechanism.weights(q, k, LENGTHS), full.weights(q, k, LENGTHS), rtol=0, atol=1e-6
    )


def test_one_query_per_cluster_equals_full_with_few_keys() -> None:
    """With C ≥ N every row of A^c is exact, so that recomputing K of its entries changes nothing."""
    mechanism, full = build("i-clustered-31:topk=2"), build("full")
    q, k, v = inputs(mechanism)
    torch.testing.assert_close(mechanism(q, k, v, LENGTHS), full(q, k, v, LENGTHS), rtol=0, atol=1e-12)


def test_ties_go_to_the_first_keys() -> None:
    """All logits tie; the two keys with recomputed weights must be the first two."""
    mechanism = build("i-clustered-1:topk=2")
    half = torch.tensor([[1.0, -2.0, 3.0, 1.0], [0.0, 4.0, -1.0, 2.0], [2.0, 2.0, 5.0, -3.0]])
    q = torch.cat((half, -half)).double().view(1, 1, 6, 4)  # integers, so that the centroid is exactly zero
    k = torch.randn(1, 1, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = mechanism.weights(q, k)
    torch.testing.assert_close(weights[..., 2:], torch.full_like(weights[..., 2:], 1 / 6))
    assert (weights[..., :2] - 1 / 6).abs().min() > 1e-3


def test_dropout_is_shared_within_clusters_and_preserves_the_mean() -> None:
    q, k, v = inputs(build("full"), torch.tensor([31]))
    clustered = build("clustered-5", dropout=0.5).train()
    torch.manual_seed(0)
    out = clustered(q, k, v)
    groups = clustered.clusters(q)
    members = groups[0, 0] == groups[0, 0, 0]
    assert members.sum() > 1
    torch.testing.assert_close(out[0, 0, members], out[0, 0, :1].expand(int(members.sum()), -1))
    assert not torch.allclose(out, clustered.eval()(q, k, v))
    for name in ("full", "oracle-top-9", "clustered-5", "i-clustered-5:topk=4"):
        mechanism = build(name, dropout=0.2)
        exact = mechanism(q, k, v)
        mean = mechanism.train()(*(x.expand(600, -1, -1, -1) for x in (q, k, v))).mean(0)
        assert (mean - exact).abs().mean() < 0.02
