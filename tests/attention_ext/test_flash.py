"""Flash attention over padded sequences; the CUDA operator is replaced by a loop over its sequences."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from attention_ext.flash import flash_attention, why_no_flash
from attention_ext.local_attention.reference import local_attention
from attention_ext.tensors import zero_padding


def one_by_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor,
    k_offsets: Tensor,
    *sizes: object,
    **window: int | None,
) -> tuple[Tensor]:
    """Attend as `aten::_flash_attention_forward` does: sequences in a row, [T, H, D]."""
    left, right = window["window_size_left"], window["window_size_right"]
    assert q_offsets.dtype == torch.int32
    assert torch.equal(q_offsets, k_offsets)
    assert q_offsets[-1] == len(q)
    parts = []
    for begin, end in itertools.pairwise(q_offsets):
        rows = [x[begin:end].transpose(0, 1) for x in (q, k, v)]
        distance = torch.arange(end - begin) - torch.arange(end - begin)[:, None]
        seen = torch.ones_like(distance, dtype=torch.bool)
        if left is not None and right is not None:
            seen = (distance >= -left) & (distance <= right)
        parts.append(torch.nn.functional.scaled_dot_product_attention(*rows, attn_mask=seen).transpose(0, 1))
    return (torch.cat(parts),)


@pytest.mark.parametrize("window", [None, (0, 0), (3, 3), (3, 0), (2, 9), (40, 40)])
def test_equals_the_reference(window: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", one_by_one)
    g = torch.Generator().manual_seed(0)
    lengths = torch.tensor([31, 0, 17, 1])
    q, k, v, grad = (zero_padding(torch.randn(4, 2, 31, 8, generator=g), lengths) for _ in range(4))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = flash_attention(*leaves, lengths, window)
    found = [zero_padding(out, lengths), *torch.autograd.grad(out, leaves, grad)]
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = local_attention(*leaves, lengths, *(window or (31, 31)), chunk=1, first=0)
    expected = [out, *torch.autograd.grad(out, leaves, grad)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_the_cpu_has_no_flash_attention() -> None:
    x = torch.zeros(1, 1, 4, 8, dtype=torch.bfloat16)
    assert why_no_flash(x, x, x) == "flash attention needs float16 or bfloat16 on CUDA"


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((7, 5), "flash attention needs compute capability 8.0 or above, found 7.5"),
        ((8, 0), None),
        ((12, 0), None),
    ],
)
def test_gpus_before_ampere_have_no_flash_attention(
    capability: tuple[int, int], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full and local attention in float16 ended in PyTorch's error on a T4; CUDA is pretended."""
    gpu = SimpleNamespace(major=capability[0], minor=capability[1])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    with FakeTensorMode():
        x = torch.zeros(1, 1, 4, 8, dtype=torch.float16, device="cuda")
    assert why_no_flash(x, x, x) == expected
