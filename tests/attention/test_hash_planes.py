"""Hash planes of all layers, of each layer or of each training step; biases; rounds of LSH attention."""

import pytest
import torch
from mechanisms import LENGTHS, build, inputs
from torch import Tensor

import attention_ext
from asr.attention import build_mechanism
from asr.attention.hashing import RandomDirections
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.seeds import derived_seed

FRESH = [
    "clustered-5:planes=fresh",
    "i-clustered-5:topk=4,planes=fresh,bias=true",
    "lsh-2:chunk=4,planes=fresh",
]
FURTHER = ["lsh-3:chunk=4,rounds=mean", "clustered-5:bias=true", "clustered-5:bias=true,center=true"]


def stored(attention: str, swapped_to: str = "") -> list[Tensor]:
    """Return the directions of every layer of a model with three layers."""
    config = AcousticModelConfig(attention)
    config.model.layers, config.model.heads, config.model.head_dim = 3, 2, 8
    model = AcousticModel(config, vocabulary=5)
    if swapped_to:
        model.set_attention(swapped_to)
    return [x.stored for x in model.modules() if isinstance(x, RandomDirections)]


def test_layers_have_planes_of_their_own_with_planes_layer() -> None:
    first, second, third = stored("clustered-5")
    assert torch.equal(first, second)
    assert torch.equal(second, third)
    layers = stored("clustered-5:planes=layer")
    assert len({tuple(x.flatten().tolist()) for x in (first, *layers)}) == 4
    for other in (stored("clustered-5:planes=layer"), stored("full", "clustered-5:planes=layer")):
        assert all(torch.equal(x, y) for x, y in zip(layers, other, strict=True))
    assert not torch.equal(*stored("lsh-2:planes=layer")[:2])


def test_a_bias_adds_a_column_to_the_same_planes() -> None:
    (plain,), (biased,) = (
        [x.stored for x in build(name).modules() if isinstance(x, RandomDirections)]
        for name in ("clustered-5", "clustered-5:bias=true")
    )
    assert torch.equal(plain, biased[:, :-1])
    assert biased[:, -1].abs().min() > 0


def test_without_a_bias_only_directions_are_hashed() -> None:
    q = inputs(build("clustered-5"), torch.tensor([31]))[0]
    for bias, same in (("false", True), ("true", False)):
        mechanism = build(f"clustered-5:bias={bias}")
        longer = q * torch.linspace(0.1, 10, q.shape[2]).view(-1, 1)
        assert torch.equal(mechanism.clusters(q), mechanism.clusters(longer)) == same


@pytest.mark.parametrize(
    "name", ["clustered-9", "i-clustered-9:topk=4", "near-9:topk=4,window=1,grouping=hash"]
)
def test_centred_queries_have_the_same_groups_wherever_they_lie(name: str) -> None:
    """Far from the origin, sign hashes of queries hardly differ; distances between them do not change."""
    q, k = torch.randint(-8, 9, (2, 1, 2, 70, 8), generator=torch.Generator().manual_seed(1)) / 8
    far = q + 64  # exact, and so is the mean
    head, colon, tail = name.partition(":")
    centred = build(f"{head}:center=true" + ("," + tail if colon else ""))
    groups = centred.clusters(q, k=k)
    assert torch.equal(centred.clusters(far, k=k), groups)
    for row in groups[0]:
        assert len(row.unique()) == 9
    assert not torch.equal(build(name).clusters(far, k=k), build(name).clusters(q, k=k))


@pytest.mark.parametrize("name", FRESH)
def test_fresh_planes_follow_from_the_seed_of_the_step(name: str) -> None:
    """Training resumes bit for bit because each step is seeded with (seed, batch, rank)."""
    mechanism = build(name).train()
    q, k, v = inputs(mechanism)

    def step(batch: int) -> Tensor:
        torch.manual_seed(derived_seed(0, batch, 0))
        return mechanism(q, k, v, LENGTHS)

    outputs = [step(batch) for batch in (3, 4, 5)]
    assert not torch.equal(outputs[0], outputs[1])
    assert torch.equal(step(4), outputs[1])
    mechanism.eval()
    fixed = build(name.replace("planes=fresh", "planes=fixed"))
    assert torch.equal(mechanism(q, k, v, LENGTHS), fixed(q, k, v, LENGTHS))


@pytest.mark.parametrize("name", FRESH)
def test_stored_planes_leave_the_random_numbers_of_training_alone(name: str) -> None:
    mechanism = build(name.replace("fresh", "fixed")).train()
    state = torch.get_rng_state()
    mechanism(*inputs(mechanism), LENGTHS)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.skipif(attention_ext.why_unavailable("cpu") is not None, reason="needs the compiled kernels")
@pytest.mark.parametrize("name", [*FRESH, *FURTHER])
def test_native_equals_reference(name: str) -> None:
    results = []
    for backend in ("native", "reference"):
        mechanism = build_mechanism(name, backend=backend).train()
        leaves = [x.float().requires_grad_() for x in inputs(mechanism)]
        torch.manual_seed(1)
        out = mechanism(*leaves, LENGTHS)
        out.cos().sum().backward()
        results.append([out, *(x.grad for x in leaves if x.grad is not None)])
    for native, reference in zip(*results, strict=True):
        torch.testing.assert_close(native, reference, rtol=1e-4, atol=1e-5)
