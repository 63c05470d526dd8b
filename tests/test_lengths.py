"""Masks of valid positions."""

import pytest
import torch

from asr.attention import build_self_attention
from asr.attention.table import default_names
from asr.errors import UserError
from asr.lengths import keep_mask, zero_padding


def test_keep_mask_is_true_before_the_length() -> None:
    mask = keep_mask(torch.tensor([0, 2, 3]), 3)
    assert mask.tolist() == [[False] * 3, [True, True, False], [True] * 3]


def test_lengths_may_be_on_another_device() -> None:
    """Layers accept lengths on the CPU for states on a GPU; `meta` stands for it."""
    assert zero_padding(torch.ones(2, 3, 4, device="meta"), torch.tensor([1, 0])).device.type == "meta"


def test_zero_padding_removes_nan_and_infinity() -> None:
    x = torch.full((2, 3, 4), float("nan"))
    x[0, :1] = 1.0
    assert zero_padding(x, torch.tensor([1, 0])).sum() == 4.0


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", default_names())
def test_lengths_that_are_fractions_are_refused(name: str, backend: str) -> None:
    """Seven mechanisms took lengths of 0 … 1 for numbers of positions, and gave zeros."""
    layer = build_self_attention(name, model_dim=16, heads=2, backend=backend)
    for lengths in (torch.tensor([0.5, 1.0]), torch.tensor([16.0, 8.0]), torch.tensor([True, False])):
        with pytest.raises(UserError, match=r"^lengths: expected integers, .*, found torch\.(float32|bool)$"):
            layer(torch.randn(2, 16, 16), lengths)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.float32, torch.bool])
@pytest.mark.parametrize(
    "name", ["full", "lsh-1", "clustered-3", "near-3", "local-4", "linear", "summary", "none"]
)
def test_lengths_of_other_types_are_one_error(name: str, dtype: torch.dtype) -> None:
    """Some mechanisms took int16, and others failed in their own ways."""
    layer = build_self_attention(name, model_dim=8, heads=2)
    with pytest.raises(UserError, match=rf"^lengths: expected integers, .* found {dtype}$"):
        layer(torch.randn(2, 5, 8), torch.tensor([1, 1]).to(dtype))
    layer(torch.randn(2, 5, 8), torch.tensor([1, 1], dtype=torch.int32))
