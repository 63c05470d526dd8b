"""Masks of valid positions."""

import torch

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
