"""Small inputs on which K-means with 7 clusters once lost all members of a cluster: a rare event.

None of them has fewer than 7 distinct codes, so that every cluster must have members in the end.
"""

import torch
from torch import Tensor

CLUSTERS, ITERATIONS, BITS = 7, 6, 8
HASHES = torch.tensor(
    [
        [65, 140, 200, 70, 111, 18, 140, 78, 140, 65, 67, 81, 140, 78, 105, 105],
        [206, 130, 108, 106, 29, 29, 228, 228, 164, 42, 228, 149, 228, 106, 206, 42],
        [25, 11, 3, 30, 18, 29, 29, 7, 63, 3, 18, 30, 48, 30, 48, 25],
    ]
).unsqueeze(1)  # [3, 1, 16]
POINTS = [
    [0, 3, 0, 0, 0, 13, -1, -1, 0, -5, 26, -9, 0, 0, 1, -6],
    [6, -9, 0, -17, 3, -8, 4, 0, 1, -6, -1, -7, 1, 0, 1, 40],
]


def queries_and_keys() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries [2, 1, 16, 1], keys [2, 1, 2, 1] and their lengths."""
    q = torch.tensor(POINTS, dtype=torch.float32).view(2, 1, 16, 1)
    k = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1).expand(2, 1, 2, 1)
    return q, k, torch.tensor([16, 16]), torch.tensor([2, 2])
