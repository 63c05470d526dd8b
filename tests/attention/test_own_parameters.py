"""Mechanisms with parameters of their own equal their oracles and have the properties of their papers."""

import math

import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanisms import LENGTHS, OWN, build_layer, layer_input

from asr.attention import build_mechanism, build_self_attention, parse_name
from asr.attention.cast import assign_single, assign_top
from asr.errors import UserError

FIRST = list({name.partition("-")[0].partition(":")[0]: name for name in reversed(OWN)}.values())


def build(name: str) -> torch.nn.Module:
    return build_layer(name, model_dim=8).double()


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, torch.float64) for name in OWN] + [(name, torch.float32) for name in FIRST]
)
def test_output_equals_the_oracle(name: str, dtype: torch.dtype) -> None:
    layer, x = build(name).to(dtype), layer_input(8, dtype)
    y = layer(x, LENGTHS)
    assert y.dtype == dtype
    for b, n in enumerate(LENGTHS.tolist()):
        assert (y[b, n:] == 0).all()
        if n:
            rows = x[b, :n].double()
            match parse_name(name).mechanism.replace("-", "_"):
                case "agglomerative":
                    expected = oracles.agglomerative(rows, layer, causal="causal" in name)
                case oracle:
                    expected = getattr(oracles, oracle)(rows, layer)
            close = {"rtol": 0, "atol": 1e-12 if dtype == torch.float64 else 1e-5}
            torch.testing.assert_close(y[b, :n].double(), expected, **close)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OWN)
def test_half_precision_is_close_to_the_oracle(name: str, dtype: torch.dtype) -> None:
    """Agglomerative attention raised an error."""
    layer, x = build(name), layer_input(8, torch.float64)
    expected = layer(x.to(dtype).double(), LENGTHS)
    found = layer.to(dtype)(x.to(dtype), LENGTHS)
    assert found.dtype == dtype
    if not name.startswith("cast"):  # other precision, other clusters
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=0.05)


@pytest.mark.parametrize("name", FIRST)
def test_cannot_be_exchanged(name: str) -> None:
    layer = build(name)
    layer.set_mechanism(layer.name)
    with pytest.raises(UserError, match="parameters of its own"):
        layer.set_mechanism("full")
    with pytest.raises(UserError, match="parameters of its own"):
        build_self_attention("full", 8, 2).set_mechanism(name)
    with pytest.raises(UserError, match="build_self_attention"):
        build_mechanism(name)
    with pytest.raises(UserError, match="native"):
        build_self_attention(name, 8, 2, backend="native")
    with pytest.raises(UserError, match="rotary"):
        build_self_attention(name, 8, 2, rotary_base=1e4)


@pytest.mark.parametrize(
    "name",
    [
        "cast-3:assign=single",
        "cast-3:assign=single,capacity=5",
        "cast-9:assign=single,count=root",
        "agglomerative-4",
        "summary",
        "hyper",
        "fastformer",
        "mamba:chunk=4",
    ],
)
def test_every_position_depends_on_every_other(name: str) -> None:
    layer = build(name)
    x = torch.randn(1, 13, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    flow = torch.autograd.functional.jacobian(lambda x: layer(x)[0, :, 0], x)[:, 0].abs().sum(-1)
    assert flow.shape == (13, 13)
    assert (flow > 1e-12).all()


def test_surrogates_and_gate_receive_gradients() -> None:
    for name in ("cast-3", "cast-3:assign=single"):
        layer = build(name)
        layer(layer_input(8, torch.float64).nan_to_num(), LENGTHS).square().sum().backward()
        assert (layer.surrogates_HCD.grad.abs().sum(-1) > 0).all()
        assert (layer.gate.weight.grad != 0).all()
        assert (layer.gate.bias.grad != 0).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 30),
    clusters=st.integers(1, 7),
    spare=st.integers(0, 3),
    levels=st.integers(1, 50),
    seed=st.integers(0, 9),
)
def test_assignments_equal_the_oracle(size: int, clusters: int, spare: int, levels: int, seed: int) -> None:
    """A small number of levels makes ties frequent."""
    generator = torch.Generator().manual_seed(seed)
    affinity = torch.randint(0, levels, (2, 2, size, clusters), generator=generator).double() / levels
    lengths = torch.tensor([size, size // 2])
    capacity = (lengths + clusters - 1) // clusters + spare
    slots = int(capacity.max())
    members, filled = assign_single(affinity, lengths, capacity, slots)
    for b, n in enumerate(lengths.tolist()):
        for h in range(2):
            expected = oracles.single_assignment(affinity[b, h, :n], int(capacity[b]))
            for j in range(clusters):
                tokens = sorted(members[b, h, j][filled[b, h, j]].tolist())
                assert tokens == [i for i in range(n) if expected[i] == j]
                assert len(tokens) <= capacity[b]

    capacity = torch.minimum(capacity, lengths)
    members, filled = assign_top(affinity, lengths, capacity, int(capacity.max()))
    for b, n in enumerate(lengths.tolist()):
        for j in range(clusters):
            tokens = members[b, 0, j][filled[b, 0, j]].tolist()
            assert tokens == oracles.best(affinity[b, 0, :n, j].tolist(), int(capacity[b]))


def count_clusters(layer: torch.nn.Module, lengths: list[int]) -> list[int]:
    return layer.in_use(torch.tensor(lengths)).sum(1).tolist()


def test_the_number_of_clusters_follows_the_length() -> None:
    lengths = [0, 1, 2, 4, 5, 9, 10, 16, 17, 63, 64, 65, 81, 82, 10_000]
    used = [0, 1, 2, 2, 3, 3, 4, 4, 5, 8, 8, 9, 9, 9, 9]
    assert count_clusters(build("cast-9:count=root"), lengths) == used
    assert count_clusters(build("cast-9"), lengths) == [9] * len(lengths)
    layer = build("cast-9:count=root")
    for n in range(1, 200):
        used = min(9, math.isqrt(n - 1) + 1)
        assert layer._capacity(n) == -(-n // used)
        assert layer._capacity(n) <= layer._capacity(n + 1)  # so that slots for the padded length suffice


def test_shared_heads_assign_the_same_tokens() -> None:
    x = layer_input(8, torch.float64).nan_to_num()
    found = {}
    for name in ("cast-3:heads=own", "cast-3"):
        layer = build(name)
        q, k = (layer._split_heads(project(x)) for project in (layer.query, layer.key))
        used, gate = layer.in_use(LENGTHS), layer.gate(x).unsqueeze(1)
        joint = layer.joint_affinity(layer.affinities(q), layer.affinities(k), gate, used)
        found[name] = joint, layer.members(joint, LENGTHS, used)[0]
    (own, each), (mean, common) = found.values()
    torch.testing.assert_close(own.mean(1, keepdim=True), mean)
    assert (each[:, 0] != each[:, 1]).any()
    assert common.shape[1] == 1


def test_causal_output_equals_that_of_every_prefix() -> None:
    layer, x = build("agglomerative-4:causal=true"), layer_input(8, torch.float64)[:1]
    full = build("agglomerative-4")
    full.load_state_dict(layer.state_dict())
    y = layer(x)
    for n in range(1, 32):
        torch.testing.assert_close(y[:, n - 1], full(x[:, :n])[:, -1], rtol=0, atol=1e-12)


def test_classes_must_divide_the_model_size() -> None:
    with pytest.raises(UserError, match="model_dim=8 is not a multiple of 3 classes"):
        build("agglomerative-3")
