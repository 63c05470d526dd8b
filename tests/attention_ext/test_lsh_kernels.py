"""Compares compiled LSH buckets with the reference in float64."""

import pytest
import torch
from kernel_cases import needs_kernels, poison

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
