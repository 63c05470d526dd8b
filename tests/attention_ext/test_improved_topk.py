"""Top keys of improved clustered attention in orders of scores that the search is not made for."""

import pytest
import torch
from kernel_cases import needs_kernels

pytestmark = needs_kernels

S = 2500  # keys: three blocks of chunks of 512
SCORES = {
    "rising": lambda: torch.arange(S),
    "falling": lambda: -torch.arange(S),
    "rising, with many equals": lambda: torch.arange(S) // 50,
    "two values": lambda: torch.arange(S) % 2,
    "zeros of both signs": lambda: torch.zeros(S).copysign(torch.arange(S) % 3 - 1.0),
    "high only where the search is under way": lambda: torch.arange(S) % 1024 // 512 * torch.arange(S) % 97,
    "random, rounded": lambda: torch.randn(S, generator=torch.Generator().manual_seed(1)).mul(20).round(),
}


@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("topk", [1, 32, 300])
@pytest.mark.parametrize("C", [3, 20])
@pytest.mark.parametrize("name", SCORES)
def test_the_best_and_of_equals_the_first(name: str, C: int, topk: int, dtype: torch.dtype) -> None:
    """Lists of candidates overflow where scores rise; half of the clusters see the scores turned round."""
    score = SCORES[name]().to(dtype)
    k_BHSD = torch.stack([score, -score], -1)[None, None]
    groups = torch.arange(C, dtype=torch.int32)
    q_BHND = torch.nn.functional.one_hot(groups.long() % 2, 2).to(dtype)[None, None]
    lengths = torch.tensor([C]), torch.tensor([S])
    top = torch.ops.attention_ext.improved_clustered_attention(
        q_BHND, k_BHSD, k_BHSD, groups[None, None], *lengths, C, topk, 0.0, None
    )[4]
    for c in range(C):
        # −0 and 0 are equal.
        best = (k_BHSD[0, 0, :, c % 2] + 0.0).sort(descending=True, stable=True).indices[:topk]
        assert torch.equal(top[0, 0, c], best.sort().values.int())
