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


@pytest.mark.parametrize("name", default_names())
def test_lengths_of_other_types_are_one_error(name: str) -> None:
    """Seven mechanisms took lengths of 0 … 1 for numbers of positions, and gave zeros; some took int16."""
    for backend in ("auto", "reference"):
        layer, x = build_self_attention(name, model_dim=16, heads=2, backend=backend), torch.randn(2, 5, 16)
        for dtype in (torch.int16, torch.uint8, torch.float32, torch.bool):
            with pytest.raises(UserError, match=rf"^lengths: expected integers, .* found {dtype}$"):
                layer(x, torch.tensor([1, 1]).to(dtype))
        layer(x, torch.tensor([1, 1], dtype=torch.int32))
