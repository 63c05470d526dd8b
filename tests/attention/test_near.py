"""Near-field attention: its limits, what it improves, and the far field of the reference."""

import pytest
import torch
from mechanisms import LENGTHS, build, inputs

from asr.attention import build_mechanism, near, parse_name
from attention_ext import operators
from attention_ext.improved_clustered_attention.graph import products_per_query
from attention_ext.improved_clustered_attention.reference import products_in_blocks
from attention_ext.near_attention import native as near_native
from attention_ext.near_attention import reference
from attention_ext.near_attention.reference import near_weights


@pytest.mark.parametrize(
    "name",
    [
        "near-31:topk=1,window=0",
        "near-3:topk=31,window=0",
        "near-1:topk=1,window=30",
        "near-3:topk=20,window=65536",
        "near-31:grouping=hash",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_full_where_clusters_or_exact_keys_reach_the_length(name: str, dtype: torch.dtype) -> None:
    mechanism, full = build(name), build("full")
    q, k, v = inputs(mechanism, dtype=dtype)
    torch.testing.assert_close(mechanism(q, k, v, LENGTHS), full(q, k, v, LENGTHS), rtol=0, atol=1e-6)
    weights = mechanism.weights(q, k, LENGTHS)
    torch.testing.assert_close(weights, full.weights(q, k, LENGTHS), rtol=0, atol=1e-6)


def distances(q: torch.Tensor, k: torch.Tensor) -> list[float]:
    """Return the mean L1 distance from full attention's rows for near-25, i-clustered-25 and local-16."""
    full = build("full").weights(q, k)
    names = ("near-25", "i-clustered-25:grouping=keys", "local-16")
    return [float((build(name).weights(q, k) - full).abs().sum(-1).mean()) for name in names]


def test_closer_to_full_attention_where_heads_look_at_neighbours() -> None:
    """Sinusoidal positions and content of equal variance: a centroid's row is blurred over its members'."""
    generator = torch.Generator().manual_seed(5)
    angle = torch.arange(600, dtype=torch.float64).unsqueeze(-1) * torch.tensor([0.5, 0.23, 0.11, 0.05])
    position = 4 * torch.cat((angle.cos(), angle.sin()), dim=-1)
    q, k = (
        torch.cat((position, torch.randn(600, 24, generator=generator, dtype=torch.float64)), -1)[None, None]
        for _ in range(2)
    )
    ours, improved, local = distances(q, k)
    assert ours < 0.75 * improved
    assert ours < 0.5 * local


def test_proposition_2_does_not_hold() -> None:
    """On a random walk, whose norms differ, improved clustering is closer to full attention."""
    generator = torch.Generator().manual_seed(5)
    walk = torch.randn(1, 2, 600, 16, generator=generator, dtype=torch.float64).cumsum(2)
    k = walk / walk.std(2, keepdim=True)
    q = 2 * k + 0.5 * torch.randn(k.shape, generator=generator, dtype=torch.float64)
    ours, improved, _ = distances(q, k)
    assert ours > 1.2 * improved


@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 129, 257, 700])
@pytest.mark.parametrize("window", [0, 16, 100])
def test_blocks_of_far_keys(size: int, window: int) -> None:
    """One to eleven blocks, and windows wider than a block, against dense weights."""
    generator = torch.Generator().manual_seed(size)
    q, k, v = (3 * torch.randn(2, 1, size, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    lengths = torch.tensor([size, size // 2])
    groups = torch.randint(0, min(5, size), (2, 1, size), generator=generator, dtype=torch.int32)
    sizes = (groups, lengths, 5, 2, window)
    expected = near_weights(q, k, *sizes) @ v
    for products in (products_in_blocks, products_per_query):
        found = reference.near_attention(q, k, v, *sizes, products=products)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 7, 16, 21])
def test_far_blocks_in_levels_and_at_once(blocks: int) -> None:
    """Graphs with a dynamic length have no number of levels."""
    generator = torch.Generator().manual_seed(blocks)
    highest = 300 * torch.randn(1, 2, blocks, 3, 1, generator=generator, dtype=torch.float64)
    sums = torch.randn(1, 2, blocks, 3, 5, generator=generator, dtype=torch.float64)
    levels = max(0, (blocks - 1).bit_length() - 1)
    for found, expected in zip(
        reference.far_field(highest, sums, levels), reference.far_field_at_once(highest, sums), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_far_sums_do_not_cancel() -> None:
    """A window holds all but 1e-26 of what a centroid gives; the query itself gives nothing to it."""
    q, k = torch.zeros(1, 1, 300, 1, dtype=torch.float64), torch.zeros(1, 1, 300, 1, dtype=torch.float64)
    q[..., 0] = 1
    q[:, :, 100:110] = -1
    k[:, :, 96:112] = 60
    v = torch.randn(1, 1, 300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    groups, lengths = torch.zeros(1, 1, 300, dtype=torch.int32), torch.tensor([300])
    sizes = (groups, lengths, 1, 1, 20)
    out = reference.near_attention(q, k, v, *sizes)
    torch.testing.assert_close(out, near_weights(q, k, *sizes) @ v, rtol=0, atol=1e-13)
    far = torch.arange(300)
    far = far[((far < 105 - 20) | (far > 105 + 20)) & (far != 96)]  # key 96 is the top key
    torch.testing.assert_close(out[0, 0, 105], v[0, 0, far].mean(0), rtol=0, atol=0.2)


def test_groups_by_keys_are_the_default() -> None:
    assert build("near-5").grouping.needs_keys
    assert parse_name("near-5:grouping=keys").name == "near-5"
    assert parse_name("near-5:grouping=hash,bits=31").name == "near-5:grouping=hash,bits=31"


def test_kernels_built_before_the_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a library of older sources, every mechanism failed because one operator was not there."""
    monkeypatch.setattr(operators, "lacks", lambda name: name == "near_attention")
    monkeypatch.setattr(near_native.OPERATOR, "register", pytest.fail)
    operators.register()
    monkeypatch.setattr(near, "lacks", lambda _: True)
    assert build_mechanism("near-3").backend.on("cpu") == "reference"
    assert "install the package again" in str(build_mechanism("near-3").backend.reasons["cpu"])
