"""Linear attention: causality, and no exchange with the softmax family."""

import pytest
import torch
from mechanisms import LINEAR, build, build_layer, inputs

from asr.attention import build_mechanism, build_self_attention
from asr.errors import UserError


def test_causal_output_equals_that_of_every_prefix() -> None:
    """Over three chunks of sums."""
    causal, full = build("linear:causal=true"), build("linear")
    q, k, v = inputs(causal, torch.tensor([150]), 150)
    out = causal(q, k, v)
    for n in (1, 2, 63, 64, 65, 128, 150):
        expected = full(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n])
        torch.testing.assert_close(out[:, :, n - 1 : n], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", LINEAR)
def test_cannot_be_exchanged_although_it_has_no_parameters(name: str) -> None:
    layer = build_layer(name)
    layer.set_mechanism(name)
    with pytest.raises(UserError, match=f"'{name}' can't be exchanged for 'full': only .* softmax family"):
        layer.set_mechanism("full")
    with pytest.raises(UserError, match=f"'full' can't be exchanged for '{name}'"):
        build_layer("full").set_mechanism(name)
    with pytest.raises(UserError, match="no rotary positions"):
        build_self_attention(name, 12, 2, rotary_base=1e4)
    with pytest.raises(UserError, match="no compiled kernels"):
        build_mechanism(name, backend="native")


def test_cross_attention_cannot_be_causal() -> None:
    with pytest.raises(UserError, match="self-attention only"):
        build("linear:causal=true")(torch.zeros(1, 1, 4, 2), *torch.zeros(2, 1, 1, 5, 2))
