"""Properties of clustered attention: Proposition 1. For 2 and 3, see test_improved_clustered.py."""

import pytest
import torch
from mechanisms import build


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_proposition_1_bounds_the_difference_of_two_queries(scale: float) -> None:
    """‖softmax(Q_i Kᵀ) − softmax(Q_j Kᵀ)‖₂ ≤ ‖Q_i − Q_j‖₂ ‖K‖₂; equation 1 divides the logits by √D."""
    generator = torch.Generator().manual_seed(4)
    q = scale * torch.randn(2, 3, 40, 16, generator=generator, dtype=torch.float64)
    k = torch.randn(2, 3, 40, 16, generator=generator, dtype=torch.float64)
    weights = build("full").weights(q, k)
    apart, far = ((x.unsqueeze(-2) - x.unsqueeze(-3)).norm(dim=-1) for x in (weights, q))
    bound = far * torch.linalg.matrix_norm(k, 2)[..., None, None] / 16**0.5
    assert (apart <= bound + 1e-12).all()


def test_proposition_1_is_half_used_at_equal_weights() -> None:
    """Two opposite keys with equal weights have the largest slope, half of the bound."""
    step = torch.tensor([1e-4] + [0.0] * 15, dtype=torch.float64)
    q = torch.stack((torch.zeros_like(step), step)).view(1, 1, 2, 16)
    k = torch.stack((3e4 * step, -3e4 * step)).view(1, 1, 2, 16)
    weights = build("full").weights(q, k)
    apart = (weights[0, 0, 0] - weights[0, 0, 1]).norm()
    bound = step.norm() * torch.linalg.matrix_norm(k[0, 0], 2) / 4
    assert 0.499 < apart / bound < 0.501


def test_the_error_of_clustered_attention_is_bounded_by_the_distance_to_the_centroid() -> None:
    """The use of Proposition 1 for query i in cluster j: ‖A^c_j − A_i‖₂ ≤ ‖Q^c_j − Q_i‖₂ ‖K‖₂ / √D."""
    generator = torch.Generator().manual_seed(5)
    q, k = (torch.randn(1, 3, 200, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    mechanism = build("clustered-9")
    members = torch.nn.functional.one_hot(mechanism.clusters(q).long(), 9).double()
    centroids = members @ ((members.mT @ q) / members.sum(2).unsqueeze(-1).clamp(min=1))
    error = (mechanism.weights(q, k) - build("full").weights(q, k)).norm(dim=-1)
    bound = (centroids - q).norm(dim=-1) * torch.linalg.matrix_norm(k, 2).unsqueeze(-1) / 4
    assert (error <= bound + 1e-12).all()
    assert error.max() > 0.01
