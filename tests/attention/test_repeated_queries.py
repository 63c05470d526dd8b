"""Groups of inputs in which many queries are the same, as in digital silence."""

import pytest
import torch
from torch import Tensor

from asr.attention import build_mechanism
from asr.attention.clustered import ClusteredAttention
from attention_ext import why_unavailable

reason = why_unavailable("cpu")
native = pytest.param("native", marks=pytest.mark.skipif(reason is not None, reason=str(reason)))
pytestmark = [
    pytest.mark.parametrize("backend", ["reference", native]),
    pytest.mark.parametrize("grouping", ["hash", "keys"]),
]


def clustered(clusters: int, grouping: str, backend: str) -> ClusteredAttention:
    mechanism = build_mechanism(f"clustered-{clusters}:grouping={grouping}", backend)
    assert isinstance(mechanism, ClusteredAttention)
    return mechanism


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def squared_error(q: Tensor, groups: Tensor) -> float:
    """Sum of the squared distances of the queries [N, D] from the means of their groups."""
    members = torch.nn.functional.one_hot(groups.long()).double()
    means = members.T @ q.double() / members.sum(0).clamp(min=1).unsqueeze(1)
    return float((q - members @ means).square().sum())


@pytest.mark.parametrize("clusters", [5, 25, 100])
def test_five_distinct_queries_have_five_clusters_and_exact_attention(
    clusters: int, grouping: str, backend: str
) -> None:
    """Initial centroids at a fixed stride once met only 2 of them in this order."""
    q, k, v = draw(3, 1, 2, 1000, 16)
    q = q[:, :, torch.arange(1000) % 5]
    mechanism = clustered(clusters, grouping, backend)
    groups = mechanism.clusters(q, k=k)
    for head in groups[0]:
        assert torch.equal(head, head[:5].repeat(200))
        assert len(head.unique()) == 5
    torch.testing.assert_close(mechanism(q, k, v), build_mechanism("full")(q, k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("share", "clusters"), [(0.5, 25), (0.9, 25), (0.5, 100), (0.9, 100)])
def test_silence_takes_one_cluster(share: float, clusters: int, grouping: str, backend: str) -> None:
    """Initial centroids in the silence were equal, and all but one of their clusters stayed empty.

    The error is nearly that of the other queries alone, with one cluster less.
    """
    N = 1000
    q, k = draw(1, 1, N, 16), draw(1, 1, N, 16, seed=1)
    silent = torch.randperm(N, generator=torch.Generator().manual_seed(2)) < share * N
    q[:, :, silent] = 0.3
    groups = clustered(clusters, grouping, backend).clusters(q, k=k)[0, 0]
    assert len(groups.unique()) == min(clusters, int((~silent).sum()) + 1)
    others = q[:, :, ~silent]
    alone = clustered(clusters - 1, grouping, backend).clusters(others, k=k)[0, 0]
    assert squared_error(q[0, 0], groups) <= 1.1 * squared_error(others[0, 0], alone)


def test_equal_queries_are_one_cluster(grouping: str, backend: str) -> None:
    q, k = draw(1, 1, 1, 8).expand(1, 2, 300, 8), draw(1, 2, 300, 8, seed=1)
    assert (clustered(25, grouping, backend).clusters(q, k=k) == 0).all()


@pytest.mark.parametrize("N", [1, 2, 24, 25])
def test_no_more_queries_than_clusters(N: int, grouping: str, backend: str) -> None:
    """Every query is its own cluster, equal ones too."""
    q, k = draw(1, 2, 1, 8).expand(1, 2, N, 8), draw(1, 2, N, 8, seed=1)
    groups = clustered(25, grouping, backend).clusters(q, k=k)
    assert torch.equal(groups, torch.arange(N, dtype=torch.int32).expand(1, 2, N))


def test_repeated_queries_alone_in_a_batch_and_padded(grouping: str, backend: str) -> None:
    q = draw(3, 2, 400, 8)[:, :, torch.arange(400) % 70]
    q[1, :, 100:250] = q[1, :, :1]
    k, lengths = draw(3, 2, 400, 8, seed=1), torch.tensor([400, 311, 60])
    for b, n in enumerate(lengths.tolist()):
        q[b, :, n:] = k[b, :, n:] = float("nan")
    mechanism = clustered(30, grouping, backend)
    groups = mechanism.clusters(q, lengths, k)
    for b, n in enumerate(lengths.tolist()):
        alone = mechanism.clusters(q[b : b + 1, :, :n], k=k[b : b + 1, :, :n])
        assert torch.equal(groups[b : b + 1, :, :n], alone)
