"""Addends of the logits of keys, by which frames count as often as their size."""

import oracles
import pytest
import torch
from mechanisms import LINEAR, SOFTMAX, build, inputs
from torch import Tensor

import attention_ext
from asr.attention import QueryKeyMechanism, build_mechanism, parse_name

NATIVE = pytest.mark.skipif(attention_ext.why_unavailable("cpu") is not None, reason="needs compiled kernels")
BACKENDS = ["reference", pytest.param("auto", marks=NATIVE)]
LENGTHS = torch.tensor([31, 0, 1, 5, 13])
CHOOSING = ("oracle-top", "i-clustered", "near")  # the addend takes part in the choice of keys
NAMES = [name for name in SOFTMAX + LINEAR if "rounds=mean" not in name and "planes=fresh" not in name]
# Everything on CPU but what only another shape of window or hash tells apart.
FEW = ["full", "full:causal=true", "oracle-top-4", "lsh-1:chunk=4,buckets=4", "local-3", "linear"]
FEW += ["clustered-5", "clustered-5:grouping=keys", "i-clustered-5:topk=4", "near-5:topk=4,window=2"]


def bias(size: int = 31) -> Tensor:
    """Return the logarithms of sizes 1 to 3 relative to 3."""
    sizes = torch.randint(1, 4, (len(LENGTHS), size), generator=torch.Generator().manual_seed(3))
    return (sizes / 3).double().log()


def expected(mechanism: QueryKeyMechanism, q: Tensor, k: Tensor, bias_N: Tensor) -> Tensor:
    """Return the weights [N, S] of one head of one unpadded sequence, by oracles that know no addend."""
    kind, root = parse_name(mechanism.name).mechanism, (q.shape[1] + 1) ** 0.5
    if kind not in CHOOSING:
        scaled = mechanism.weights(q[None, None], k[None, None])[0, 0] * bias_N.exp()
        return scaled / scaled.sum(-1, keepdim=True)
    longer_q = torch.cat((q * root / q.shape[1] ** 0.5, torch.full((len(q), 1), root)), 1)
    longer_k = torch.cat((k, bias_N[:, None]), 1)
    if kind == "oracle-top":
        return oracles.oracle_top(longer_q, longer_k, mechanism.topk)
    groups = mechanism.clusters(q[None, None], None, k[None, None])[0, 0].tolist()
    if kind == "i-clustered":
        return oracles.improved(longer_q, longer_k, groups, mechanism.topk)
    return oracles.near(longer_q, longer_k, groups, mechanism.topk, mechanism.window)


@pytest.mark.parametrize(
    ("name", "finite"),
    [(name, finite) for name in FEW for finite in (False, True)]
    + [pytest.param(x, False, marks=pytest.mark.slow) for x in NAMES if x not in FEW],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_key_counts_as_often_as_its_size(name: str, backend: str, finite: bool) -> None:
    mechanism = build(name, backend=backend)
    q, k, v = inputs(mechanism, LENGTHS, poison=7.0 if finite else float("nan"))
    found = mechanism(q, k, v, LENGTHS, bias_BS=bias(), finite_padding=finite)
    for row, length in enumerate(LENGTHS.tolist()):
        for head in range(2):
            own = [x[row, head, :length] for x in (q, k, v)]
            weights = expected(mechanism, own[0], own[1], bias()[row, :length]) if length else own[0][:, :0]
            torch.testing.assert_close(found[row, head, :length], weights @ own[2], rtol=1e-6, atol=1e-6)
    if not finite:
        assert not found[1].any()


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("backend", BACKENDS)
def test_addends_of_zero_change_nothing(name: str, backend: str) -> None:
    """A further dimension changed the signs of hashes, and so the clusters."""
    mechanism = build(name, backend=backend)
    q, k, v = inputs(mechanism, LENGTHS, dtype=torch.float32)
    zeros = torch.zeros(len(LENGTHS), 31)
    torch.testing.assert_close(
        mechanism(q, k, v, LENGTHS, bias_BS=zeros), mechanism(q, k, v, LENGTHS), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", ["full", "local-1", "clustered-2", "near-2:topk=2,window=1", "linear"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(name: str, backend: str) -> None:
    mechanism = build(name, backend=backend)
    q, k, v = (x[:, :1, :5, :3].contiguous().requires_grad_() for x in inputs(mechanism, torch.tensor([31])))
    own, lengths = bias()[:1, :5], torch.tensor([4])
    assert torch.autograd.gradcheck(lambda *x: mechanism(*x, lengths, bias_BS=own), (q, k, v))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["full", "local-3", "i-clustered-5:topk=4"])
def test_half_precision_is_close(name: str, dtype: torch.dtype) -> None:
    mechanism = build_mechanism(name).eval()
    q, k, v = (x.to(dtype) for x in inputs(mechanism, LENGTHS, poison=0.0))
    found = mechanism(q, k, v, LENGTHS, bias_BS=bias().float())
    assert found.dtype == dtype
    wide = mechanism(q.float(), k.float(), v.float(), LENGTHS, bias_BS=bias().float())
    assert (found.float() - wide).norm() < 0.02 * wide.norm()
