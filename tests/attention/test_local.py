"""Local attention: its limits, full attention, and block-banded SDPA against the reference."""

from functools import partial

import pytest
import torch
from mechanisms import LENGTHS, LOCAL, build, inputs

from asr.attention import build_mechanism
from asr.attention.table import is_causal, layer_names, look_ahead
from asr.errors import UserError
from attention_ext.local_attention import reference, sdpa


def run(attend, tensors):
    """Return output and gradients."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = attend(*leaves)
    out.nan_to_num().sin().sum().backward()
    return [out.detach(), *(x.grad for x in leaves)]


@pytest.mark.parametrize(
    "name",
    [
        *("local-31", "local-65536", "local-0:global=31", "local-2:global=65536"),
        *("local-0:right=0,chunk=31", "local-16:chunk=16", "local-1:right=65536,chunk=65536"),
    ],
)
def test_seeing_all_is_full_attention(name: str) -> None:
    mechanism, full = build(name), build("full")
    tensors = inputs(mechanism)
    expected = run(lambda *x: full(*x, LENGTHS), tensors)
    for found, truth in zip(run(lambda *x: mechanism(*x, LENGTHS), tensors), expected, strict=True):
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-12)


def test_a_window_of_zero_returns_the_values() -> None:
    mechanism = build("local-0")
    q, k, v = inputs(mechanism, poison=0.0)
    torch.testing.assert_close(mechanism(q, k, v, LENGTHS), v, rtol=0, atol=0)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("size", [31, 150])
def test_sdpa_equals_the_reference(name: str, size: int) -> None:
    """Block-banded SDPA runs on any device, so the CPU checks what CUDA uses."""
    mechanism = build(name)
    lengths = torch.tensor([size, 0, 1, 17])
    tensors = inputs(mechanism, lengths, size)
    attend = [partial(x.local_attention, lengths_B=lengths, **mechanism.sizes()) for x in (reference, sdpa)]
    expected, sums = (run(x, tensors) for x in attend)
    for found, truth in zip(sums, expected, strict=True):
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["local-3", "near-3"])
def test_cross_attention_is_refused(name: str) -> None:
    mechanism = build_mechanism(name)
    with pytest.raises(UserError, match=f"'{name}' is self-attention only: queries and keys must coincide"):
        mechanism(torch.zeros(1, 1, 4, 2), *torch.zeros(2, 1, 1, 5, 2))


@pytest.mark.parametrize(
    "name",
    [
        *("local-2:right=1", "local-0:right=0,chunk=5", "local-1:right=2,chunk=4", "local-1:right=5,chunk=3"),
        *(
            "local-2:right=1*1,local-1:right=0,chunk=6*2",
            "local-1:right=0,chunk=4*2,local-1:right=0,chunk=6*1",
        ),
        # Layers were followed from the first to the last: 8 instead of 11.
        "local-0:right=0,chunk=4*1,local-0:right=1,chunk=4*2",
        *("none", "local-9:right=0", "full:causal=true*2,local-2:right=3*1"),
    ],
)
def test_look_ahead_is_the_farthest_position_that_matters(name: str) -> None:
    """Whether an output depends on an input is read from products of the layers' dense weights."""
    n, layers = 60, 3
    reach = torch.eye(n, dtype=torch.bool)
    for own in layer_names(name, layers):
        if own == "none":
            continue
        q = torch.zeros(1, 1, n, 2, dtype=torch.float64)
        weights = build_mechanism(own).eval().weights(q, q, torch.tensor([n]))[0, 0]
        reach = (weights > 0).double() @ reach.double() > 0
    ahead = [int(row.nonzero().max()) - i for i, row in enumerate(reach[: n // 2])]
    assert look_ahead(name, layers) == max(ahead)
    assert is_causal(name) == (max(ahead) == 0)


@pytest.mark.parametrize(
    "name", ["full", "local-8:global=1,right=0", "near-4", "local-2*2,cast-4*1", "lsh-1"]
)
def test_what_sees_the_utterance_has_no_look_ahead(name: str) -> None:
    assert look_ahead(name, 3) is None


def test_auto_is_pytorch_s_attention_on_cuda() -> None:
    assert build_mechanism("local-3").backend.on("cuda") == "native"
