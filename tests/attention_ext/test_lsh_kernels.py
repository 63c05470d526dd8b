"""Compares compiled LSH buckets with the reference in float64."""

import pytest
import torch
from kernel_cases import needs_kernels, operators_of, poison

from attention_ext.lsh_attention import native, reference

pytestmark = needs_kernels


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("D", "half"), [(64, 32), (7, 1), (256, 13)])
def test_buckets_equal_the_reference_s(D: int, half: int, dtype: torch.dtype) -> None:
    """Vectors between two rotations, too close for float32, and zeros."""
    g = torch.Generator().manual_seed(1)
    rotations = torch.randn(2, D, half, generator=g)
    x = torch.randn(2, 2, 300, D, generator=g, dtype=torch.float64)
    between = torch.linalg.qr((rotations[0, :, :1] - rotations[0, :, -1:]).double()).Q
    x[0] -= (x[0] @ between) * between.T
    x[1, 0, 5] = 0
    x, lengths = x.to(dtype), torch.tensor([300, 77])
    found = native.lsh_buckets(poison(x, lengths), rotations, lengths)
    assert torch.equal(found, reference.lsh_buckets(x, rotations, lengths))


@pytest.mark.usefixtures("each_set")
def test_hashing_views_in_bfloat16_copies_no_whole_tensor() -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(2, 200, 3, 20, generator=g).bfloat16().transpose(1, 2)
    rotations, lengths = torch.randn(2, 20, 8, generator=g).double(), torch.tensor([200, 101])
    names = operators_of(lambda: native.lsh_buckets(x, rotations, lengths))
    assert "attention_ext::lsh_buckets" in names
    assert not names & {"aten::_to_copy", "aten::contiguous"}
    found, wide = (native.lsh_buckets(y, rotations, lengths) for y in (x, x.float()))
    assert torch.equal(found, wide)
