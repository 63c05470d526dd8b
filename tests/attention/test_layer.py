"""Attention layers: shared keys, exchange, rotary positions, backends, precision, state."""

import dataclasses
import logging
import math
from collections.abc import Callable

import pytest
import torch
from mechanisms import KEYS, LENGTHS, SHARED, SOFTMAX, C, K, inputs
from mechanisms import build_layer as build
from mechanisms import layer_input as batch
from torch._subclasses.fake_tensor import FakeTensorMode

import attention_ext
from asr.attention import backend as backend_module
from asr.attention import build_mechanism, build_self_attention
from asr.attention.multihead import rotate, shared_keys
from asr.errors import UserError


def test_mechanisms_with_shared_keys_need_a_layer_without_key_projection() -> None:
    layer = build("lsh-2")
    assert layer.key is None
    for name in SOFTMAX:
        layer.set_mechanism(name)
    shared, full = build("shared-full"), build("shared-full")
    full.set_mechanism("full")
    assert torch.equal(shared(batch(), LENGTHS), full(batch(), LENGTHS))
    for name in SHARED:
        with pytest.raises(UserError, match=r"keys tied .*\('full'\)"):
            build("full").set_mechanism(name)


def test_shared_keys_give_the_logits_of_reformer() -> None:
    q = torch.randn(1, 1, 5, 9, dtype=torch.float64)
    q[0, 0, 2] = 0
    k = shared_keys(q)
    assert (k[0, 0, 2] == 0).all()
    logits = q @ k.mT / math.sqrt(9)
    expected = q @ torch.nn.functional.normalize(q, dim=-1).mT
    torch.testing.assert_close(logits, expected)
    torch.autograd.gradcheck(shared_keys, (q[:, :, :2].requires_grad_(),))
    zero = torch.zeros(1, 1, 1, 4, requires_grad=True)
    shared_keys(zero).sum().backward()
    assert zero.grad.isfinite().all()
    assert shared_keys(torch.full((1, 1, 1, 4), 3e4, dtype=torch.float16)).isfinite().all()


def test_rotary_positions_are_relative_and_preserve_norms() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 1, 20, 8)
    turned_q, turned_k = rotate(q), rotate(k)
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
    torch.testing.assert_close(turned_q[0, 0, 0], q[0, 0, 0])
    products = (turned_q @ turned_k.mT)[0, 0]
    for shift in range(-19, 20):
        diagonal = products.diagonal(shift)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert products[0].std() > 0.1
    layer = build("full", rotary_base=1e4)
    x = torch.randn(1, 9, 12, generator=torch.Generator().manual_seed(0))
    assert not torch.allclose(layer(x).flip(1), layer(x.flip(1)), atol=1e-3)
    assert torch.allclose(build("full")(x).flip(1), build("full")(x.flip(1)), atol=1e-6)
    with pytest.raises(UserError, match="even head_dim, found 3"):
        build("full", head_dim=3, rotary_base=1e4)


@pytest.mark.parametrize("base", [1e4, 1.5e6])
def test_the_base_of_rotary_positions(base: float) -> None:
    """Pair d turns by base^(−2d/D) at each position; 10,000 is the default."""
    x = torch.zeros(1, 1, 1000, 8, dtype=torch.float64)
    x[..., :4] = 1.0
    turned = (rotate(x) if base == 1e4 else rotate(x, base))[0, 0]
    for n in (0, 1, 999):
        for d in range(4):
            angle = n * base ** (-2 * d / 8)
            assert turned[n, [d, d + 4]].tolist() == pytest.approx([math.cos(angle), math.sin(angle)])
    layer = build("full", rotary_base=base).double()
    x = torch.randn(1, 50, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q, k, _ = layer.project(x)
    plain_q, plain_k, _ = build("full").double().project(x)
    torch.testing.assert_close(q, rotate(plain_q, base))
    torch.testing.assert_close(k, rotate(plain_k, base))


def test_native_full_equals_reference() -> None:
    for base in (None, 1e4):
        for name in ("full", "full:causal=true", "shared-full"):
            native, reference = (build(name, backend=b, rotary_base=base) for b in ("native", "reference"))
            assert native.backend_on("cpu") == "native"
            assert reference.backend_on("cpu") == "reference"
            torch.testing.assert_close(native(batch(), LENGTHS), reference(batch(), LENGTHS))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("name", ["full", "full:causal=true"])
def test_native_full_ignores_padding(name: str, poison: float) -> None:
    native, reference = build_mechanism(name, "native"), build_mechanism(name, "reference")
    gradients = []
    for mechanism in (native, reference):
        leaves = [x.requires_grad_() for x in inputs(mechanism, poison=poison)]
        mechanism(*leaves, LENGTHS).square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_errors_give_the_reason_why_a_backend_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"oracle-top-{K}"
    with pytest.raises(UserError, match=f"native can't run {name}: cpu: this mechanism has no compiled"):
        build_mechanism(name, backend="native")
    with pytest.raises(UserError, match=r"unknown backend 'cuda': expected auto \| reference \| native"):
        build_mechanism("full", backend="cuda")
    with pytest.raises(UserError, match="at most 1024 clusters"):
        build_mechanism("clustered-1025", backend="native")
    assert build_mechanism("i-clustered-1025").backend.on("cpu") == "reference"
    monkeypatch.setattr(attention_ext, "why_unavailable", lambda device: f"no {device} today")
    with pytest.raises(UserError, match=r"cpu: no cpu today; cuda: no cuda today"):
        build_mechanism(f"i-clustered-{C}", backend="native")
    assert build_mechanism(f"i-clustered-{C}").backend.on("cpu") == "reference"


def test_native_runs_where_it_can_and_has_no_silent_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = backend_module.load_operators("reference")
    calls = []

    def load(backend: str) -> backend_module.Operators:
        def record(*args: object, **options: object) -> torch.Tensor:
            calls.append(backend)
            return reference.hash_sign(*args, **options)

        return dataclasses.replace(reference, hash_sign=record)

    monkeypatch.setattr(backend_module, "load_operators", load)
    reasons = {"cpu": None, "cuda": "no GPU"}
    monkeypatch.setattr(attention_ext, "why_unavailable", reasons.get)
    q, k, v = inputs(build_mechanism("full"))
    for backend, expected in (("auto", "native"), ("native", "native"), ("reference", "reference")):
        mechanism = build_mechanism(f"clustered-{C}", backend=backend)
        assert mechanism.backend.on("cpu") == expected
        mechanism(q, k, v, LENGTHS)
        assert calls.pop() == expected
    assert build_mechanism(f"clustered-{C}").backend.on("cuda") == "reference"
    assert build_mechanism(f"clustered-{C}").backend.on("mps") == "reference"
    with pytest.raises(UserError, match="on cuda: no GPU"):
        build_mechanism(f"clustered-{C}", backend="native").backend.on("cuda")


@pytest.mark.parametrize("name", KEYS)
def test_the_kernels_group_heads_of_at_most_256_by_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger heads ended in the kernels' RuntimeError; `auto` groups them in plain PyTorch."""
    monkeypatch.setattr(attention_ext, "why_unavailable", {"cpu": None, "cuda": None}.get)
    layer = build_self_attention(name, 12, 2, head_dim=257).eval()
    assert build_self_attention(name, 12, 2, head_dim=256).backend_on("cpu") == "native"
    assert layer.backend_on("cpu") == "reference"
    expected = build(name, head_dim=257)
    expected.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(batch(), LENGTHS), expected(batch(), LENGTHS), rtol=0, atol=1e-6)
    native = build_self_attention(name, 12, 2, head_dim=257, backend="native")
    with pytest.raises(UserError, match=r"native can't run .* on cpu: .* at most 256 by keys, found 257$"):
        native(batch(), LENGTHS)


class Recorded:
    """Operators of a backend that record their names and return their first argument."""

    def __init__(self, backend: str, calls: dict[str, str]) -> None:
        self.backend, self.calls = backend, calls

    def __getattr__(self, name: str) -> Callable[..., torch.Tensor]:
        def operator(x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            self.calls[name] = self.backend
            return x

        return operator


@pytest.mark.parametrize("kind", ["clustered", "i-clustered", "near"])
@pytest.mark.parametrize("grouping", ["hash", "keys"])
@pytest.mark.parametrize(
    ("head_dim", "value_dim", "dtype", "grouped", "attended", "reason"),
    [
        (256, 256, torch.float32, "native", "native", ""),
        (256, 256, torch.bfloat16, "native", "native", ""),
        (257, 8, torch.float32, "native", "reference", "at most 256, found 257"),
        (8, 257, torch.float16, "native", "reference", "at most 256, found 257"),
        (8, 8, torch.float64, "reference", "reference", "don't compute in float64"),
    ],
)
def test_what_the_cuda_kernels_cannot_take_runs_in_pytorch(
    kind: str,
    grouping: str,
    head_dim: int,
    value_dim: int,
    dtype: torch.dtype,
    grouped: str,
    attended: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `auto`, larger heads and float64 ended in the kernels' RuntimeError; CUDA is pretended."""
    monkeypatch.setattr(attention_ext, "why_unavailable", {"cpu": None, "cuda": None}.get)
    name, calls = f"{kind}-{C}:grouping={grouping}", {}
    auto, native = build_mechanism(name), build_mechanism(name, backend="native")
    if grouping == "keys" and head_dim > 256:
        grouped, reason = "reference", "at most 256 by keys, found 257"
    for mechanism in (auto, native):
        mechanism.operators = {x: Recorded(x, calls) for x in ("reference", "native")}
        mechanism.grouping.hashed = 8  # as in layers whose heads are longer by positions
    with FakeTensorMode(allow_non_fake_inputs=True):
        q, v = (torch.zeros(1, 2, 6, size, device="cuda", dtype=dtype) for size in (head_dim, value_dim))
        auto.attend(q, q, v, None, None)
        *groups, attention = calls.values()
        assert (set(groups), attention) == ({grouped}, attended)
        if reason:
            with pytest.raises(UserError, match=rf"native can't run .* on cuda: .*{reason}$"):
                native.attend(q, q, v, None, None)
    assert auto.backend_on("cuda", max(head_dim, value_dim), dtype) == attended
    on_cpu = "reference" if grouping == "keys" and head_dim > 256 else "native"
    assert auto.backend_on("cpu", head_dim, dtype) == on_cpu


@pytest.mark.parametrize("kind", ["i-clustered", "near"])
def test_auto_uses_kernels_where_they_are(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_ext, "why_unavailable", {"cpu": None, "cuda": "no nvcc"}.get)
    auto = build_mechanism(f"{kind}-{C}")
    assert (auto.backend.on("cpu"), auto.backend.on("cuda")) == ("native", "reference")
    assert auto.backend.reasons["cuda"] == "no nvcc"
    monkeypatch.setattr(attention_ext, "why_unavailable", {"cpu": None, "cuda": None}.get)
    assert build_mechanism(f"{kind}-{C}").backend.on("cuda") == "native"
    assert build_mechanism("full").backend.on("cuda") == "native"  # PyTorch's attention


def test_auto_logs_its_choice_once(caplog: pytest.LogCaptureFixture) -> None:
    backend_module._log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="asr.attention.backend"):
        for _ in range(3):
            build_mechanism("oracle-top-2").backend.on("cpu")
            build_mechanism("full").backend.on("cpu")
            build_mechanism("clustered-2", backend="reference").backend.on("cpu")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert sum("oracle-top-2 on cpu: backend auto chose reference (this" in x for x in lines) == 1
    assert sum("full on cpu: backend auto chose native" in x for x in lines) == 1


def test_errors_name_the_argument() -> None:
    with pytest.raises(UserError, match="model_dim=10 is not a multiple of heads=4"):
        build_self_attention("full", 10, 4)
    with pytest.raises(UserError, match=r"dropout=1.5, expected 0 ≤ dropout < 1"):
        build_mechanism("full", dropout=1.5)
    mechanism = build_mechanism("full")
    q, k, v = inputs(mechanism)
    with pytest.raises(ValueError, match=r"expected q \[B,H,N,D\]"):
        mechanism(q, k[..., :3], v)
    with pytest.raises(ValueError, match=r"with D, E ≥ 1, found"):
        mechanism(q[..., :0], k[..., :0], v)
    with pytest.raises(ValueError, match=r"expected lengths of shape \[12\], found \[3\]"):
        mechanism(q, k, v, LENGTHS[:3])
    with pytest.raises(ValueError, match="not both"):
        mechanism(q, k, v, LENGTHS, key_lengths=LENGTHS)
    with pytest.raises(ValueError, match="query_lengths and key_lengths"):
        mechanism(q[:, :, :5], k, v, LENGTHS)


@pytest.mark.parametrize("name", ["full", "shared-full", "linear", "agglomerative-4"])
def test_projections_have_no_biases_with_bias_false(name: str) -> None:
    layer = build_self_attention(name, 16, heads=4, bias=False)
    biases = [key for key, _ in layer.named_parameters() if key.endswith("bias")]
    own = ["reference_classes.bias", "query_classes.bias"] if name.startswith("agglomerative") else []
    assert biases == own
    assert layer(torch.randn(2, 5, 16)).shape == (2, 5, 16)


def test_the_mask_of_short_batches_serves_inference_and_training() -> None:
    """Calls with the same lengths share it; one made in inference mode can't be kept for a backward pass."""
    mechanism = build_mechanism("full")
    q = torch.randn(2, 2, 7, 4, requires_grad=True)
    lengths = torch.tensor([7, 3])
    with torch.inference_mode():
        inferred = mechanism(q, q, q, lengths, finite_padding=True)
    out = mechanism(q, q, q, lengths, finite_padding=True)
    out[1, :, :3].sum().backward()
    torch.testing.assert_close(out, inferred)
    torch.testing.assert_close(out[1:, :, :3], mechanism(*[q[1:, :, :3]] * 3))
    assert q.grad is not None
    assert not q.grad[1, :, 3:].any()
