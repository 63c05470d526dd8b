"""SummaryMixing: every position reads one mean over the utterance."""

import torch
from torch import Tensor, nn

from asr.attention.layer import OwnParameterLayer
from asr.attention.products import Activated, Linear
from asr.attention.softmax import filled_lengths, without_padding
from asr.lengths import keep_mask, zero_padding


class SummaryMixing(OwnParameterLayer):
    """Every position reads one mean over the utterance.

    h_t = c(f(x_t), s̄) with the summary s̄ = 1/T Σ_t s(x_t).

    Parcollet et al. 2023, *SummaryMixing* (arXiv 2307.07421) eq. 1–2. f and s are a dense layer with GELU,
    M to M, and c is a dense layer, 2·M to M: as many parameters as full attention has. The mean is over valid
    positions, in float32. Time and memory are linear in N.

    Args:
        name, backend: see `OwnParameterLayer`.
        model_dim: M.
        heads, head_dim: unused; there is one summary.
        dropout: dropout probability on the weights 1/T of the mean.
    """

    source = "[Parcollet et al. 2023, SummaryMixing](https://arxiv.org/abs/2307.07421)"
    time = memory = "N"

    def __init__(
        self, name: str, backend: str, model_dim: int, heads: int, head_dim: int, dropout: float
    ) -> None:
        super().__init__(name, backend)
        self.local = Activated(Linear(model_dim, model_dim), nn.GELU())  # f
        self.summary = Activated(Linear(model_dim, model_dim), nn.GELU())  # s
        self.combine = Linear(2 * model_dim, model_dim)  # c
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Mix: [B, N, M] with [B] lengths to [B, N, M]."""
        x, lengths = without_padding(x, lengths), filled_lengths(lengths, x)
        dtype = torch.promote_types(x.dtype, torch.float32)
        share_BN = keep_mask(lengths, x.shape[1]).to(dtype) / lengths.clamp(min=1).unsqueeze(-1)
        local_BNM, parts_BNM = self.local(x), self.summary(x)
        mean_B1M = (self.dropout(share_BN).unsqueeze(-1) * parts_BNM.to(dtype)).sum(1, keepdim=True)
        both = torch.cat((local_BNM, mean_B1M.to(local_BNM.dtype).expand_as(local_BNM)), dim=-1)
        return zero_padding(self.combine(both), lengths)
