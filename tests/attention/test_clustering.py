"""Hashes and clusters equal the oracles, are deterministic and don't depend on padding or the batch."""

import hashlib
import subprocess
import sys

import emptied_clusters
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanisms import LENGTHS, SHARED, build, inputs

from asr.attention.grouping import HashGrouping
from asr.attention.hashing import LARGEST_HEAD
from asr.attention.multihead import shared_keys
from asr.errors import UserError
from attention_ext.hashing.reference import hash_sign
from attention_ext.kmeans.reference import hamming_kmeans


def test_hashes_equal_the_oracle() -> None:
    x = torch.randn(2, 3, 11, 5, generator=torch.Generator().manual_seed(0))
    x[0, 0, 3] = 0.0
    planes = torch.randn(63, 5, generator=torch.Generator().manual_seed(1))
    hashes = hash_sign(x, planes)
    assert hashes.min() >= 0
    assert hashes[0, 0, 3] == 0
    for b in range(2):
        for h in range(3):
            assert hashes[b, h].tolist() == oracles.sign_hash(
                x[b, h].double(), planes.double(), planes[:, :0]
            )


def test_hash_bits_are_exact_near_a_hyperplane() -> None:
    """In float32 this product rounds to zero, so that only float64 gives its sign."""
    x = torch.tensor([[1.0, 2.0**-24, -1.0]]).view(1, 1, 1, 3)
    assert hash_sign(x, torch.ones(1, 3)).item() == 1


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 40),
    clusters=st.integers(1, 12),
    iterations=st.integers(1, 5),
    bits=st.integers(1, 63),
    distinct=st.integers(1, 40),
    seed=st.integers(0, 9),
)
def test_clusters_equal_the_oracle(
    size: int, clusters: int, iterations: int, bits: int, distinct: int, seed: int
) -> None:
    """Few distinct hashes and few bits make ties and empty clusters frequent."""
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randint(0, 2**bits - 1, (distinct,), generator=generator)
    hashes = pool[torch.randint(0, distinct, (3, 2, size), generator=generator)]
    lengths = torch.tensor([size, size // 2, 0])
    groups = hamming_kmeans(hashes, lengths, clusters, iterations, bits)
    assert groups.dtype == torch.int32
    for b, n in enumerate(lengths.tolist()):
        assert (groups[b, :, n:] == -1).all()
        for h in range(2):
            expected = oracles.hamming_kmeans(hashes[b, h, :n].tolist(), clusters, iterations, bits)
            assert groups[b, h, :n].tolist() == expected


def test_clusters_that_lose_all_members_start_again() -> None:
    """They once stayed empty; now they take the hash farthest from its centroid."""
    clusters, iterations, bits = emptied_clusters.CLUSTERS, emptied_clusters.ITERATIONS, emptied_clusters.BITS
    hashes = emptied_clusters.HASHES
    groups = hamming_kmeans(hashes, torch.tensor([16, 16, 16]), clusters, iterations, bits)
    for row, found in zip(hashes[:, 0].tolist(), groups[:, 0].tolist(), strict=True):
        assert found == oracles.hamming_kmeans(row, clusters, iterations, bits)
        assert len(set(found)) == clusters


def test_similar_queries_share_a_cluster() -> None:
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(4, 16, generator=generator)
    x = centers.repeat(25, 1) + 0.05 * torch.randn(100, 16, generator=generator)
    groups = build("clustered-4").clusters(x.view(1, 1, 100, 16))[0, 0].view(25, 4)
    assert (groups == groups[0]).all()
    assert len(set(groups[0].tolist())) == 4


@pytest.mark.parametrize("poison", [0.0, float("nan"), float("inf"), -1e30])
def test_clusters_do_not_depend_on_padding_or_the_batch(poison: float) -> None:
    mechanism = build("clustered-5")
    q, _, _ = inputs(mechanism, poison=poison)
    groups = mechanism.clusters(q, LENGTHS)
    for b, n in enumerate(LENGTHS.tolist()):
        if n:
            alone = mechanism.clusters(q[b : b + 1, :, :n])
            assert torch.equal(groups[b : b + 1, :, :n], alone)
            assert groups[b, :, :n].max() < min(5, n)


def test_large_heads_are_rejected() -> None:
    grouping = build("clustered-5").grouping
    assert isinstance(grouping, HashGrouping)
    with pytest.raises(UserError, match=f"head_dim={LARGEST_HEAD + 1}.*{LARGEST_HEAD}"):
        build("clustered-5").clusters(torch.randn(1, 1, 3, LARGEST_HEAD + 1))


FINGERPRINT = """
import hashlib, torch
torch.set_num_threads(1)
torch.rand(7)  # the state of the global generator must not matter
from asr.attention import build_mechanism
from asr.attention.multihead import shared_keys
q, v = torch.randn(2, 2, 2, 70, 8, generator=torch.Generator().manual_seed(5)).unbind(0)
digest = hashlib.sha256()
for name in {names}:
    out = build_mechanism(name, backend="reference")(q, shared_keys(q), v, torch.tensor([70, 33]))
    digest.update(out.numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_output_is_the_same_in_every_call_and_process() -> None:
    names = ["oracle-top-4", "clustered-9", "clustered-9:grouping=keys", "i-clustered-9:topk=4", *SHARED]
    code = FINGERPRINT.format(names=names)
    prints = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout}
    q, v = torch.randn(2, 2, 2, 70, 8, generator=torch.Generator().manual_seed(5)).unbind(0)
    for _ in range(2):
        digest = hashlib.sha256()
        for name in names:
            out = build(name)(q, shared_keys(q), v, torch.tensor([70, 33]))
            digest.update(out.numpy().tobytes())
        prints.add(digest.hexdigest() + "\n")
    assert len(prints) == 1
