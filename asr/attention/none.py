"""No attention: the baseline that shows whether attention matters on given data."""

from typing import Any

import torch
from torch import Tensor

from asr.attention.layer import OwnParameterLayer
from asr.attention.softmax import without_padding


class NoAttention(OwnParameterLayer):
    """No attention, as a baseline: blocks skip the whole sublayer, with norm and residual connection.

    The rest of an encoder sees other positions only through its convolutions: subsampling, convolutional
    positions, and those of Conformer and E-Branchformer. By itself, the layer returns zeros.

    Args:
        name, backend: see `OwnParameterLayer`.
        model_dim, heads, head_dim, dropout: unused.
    """

    source = "baseline"
    time = memory = "–"

    def __init__(
        self, name: str, backend: str, model_dim: int, heads: int, head_dim: int, dropout: float
    ) -> None:
        super().__init__(name, backend)

    @classmethod
    def is_causal(cls, options: Any) -> bool:
        """Return True: no position sees another."""
        return True

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return zeros, [B, N, M]."""
        x = without_padding(x, lengths)
        return torch.where(torch.zeros_like(x, dtype=torch.bool), x, 0)  # x · 0 would keep NaN
