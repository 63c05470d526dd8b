"""Top-key search of improved clustered attention on adversarial orders of scores."""

import pytest
import torch
from kernel_cases import needs_kernels

pytestmark = needs_kernels

S = 2500  # keys: three blocks of 1,024, in chunks of 512
SCORES = {
    "ascending": lambda: torch.arange(S),
    "descending": lambda: -torch.arange(S),
    "ascending, with many ties": lambda: torch.arange(S) // 50,
    "two values": lambda: torch.arange(S) % 2,
    "zeros of both signs": lambda: torch.zeros(S).copysign(torch.arange(S) % 3 - 1.0),
    "high only in second chunks": lambda: torch.arange(S) % 1024 // 512 * torch.arange(S) % 97,
    "random, rounded": lambda: torch.randn(S, generator=torch.Generator().manual_seed(1)).mul(20).round(),
}


@pytest.mark.hardest(C=[20], topk=[32, 300], dtype=[torch.float32])
@pytest.mark.usefixtures("each_set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("topk", [1, 32, 300])
@pytest.mark.parametrize("C", [3, 20])
@pytest.mark.parametrize("name", SCORES)
def test_top_keys_with_ties_to_the_lowest_position(name: str, C: int, topk: int, dtype: torch.dtype) -> None:
    """Ascending scores overflow candidate lists. Every other cluster sees the scores negated."""
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
