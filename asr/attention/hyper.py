"""HyperMixing: an MLP over positions whose weights are generated from the positions themselves."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from asr.attention.layer import OwnParameterLayer
from asr.attention.softmax import without_padding
from asr.attention.spec import COUNT
from asr.config import option
from asr.errors import UserError
from asr.lengths import zero_padding


@dataclass
class HyperOptions:
    """Size of the generated MLP, and whether its matrices share a hypernetwork."""

    hidden: int = option(
        0, help="hidden units of the generated MLP; 0: 2 · model size", affects="result", maximum=COUNT
    )
    tie: bool = option(
        False, help="generate both matrices of the MLP with one hypernetwork", affects="result"
    )


class HyperMixing(OwnParameterLayer):
    """An MLP over positions, whose weights are generated from the positions themselves.

    TM(X) = LayerNorm(W₂ GELU(W₁ᵀ X)), with rows of W₁ and W₂ generated from the positions' vectors.

    Mai et al. 2022, *HyperMixer* (arXiv 2203.03691) §3: row t of W_i is an MLP of x_t, so sequences may have
    any length. Multi-head as in *HyperConformer* (Mai et al. 2023, arXiv 2305.18281): each head has two MLPs
    and mixes M/H features with d'/H hidden units. An MLP has one hidden layer as wide as its input, with
    GELU. The paper's position vectors are left to the model, which adds positions to its input. Sums over
    positions are in float32. Time and memory are linear in N.

    Args:
        name, backend: see `OwnParameterLayer`.
        model_dim: M, a multiple of H.
        heads: H.
        head_dim: unused.
        dropout: dropout probability on W₂.
        options: d', hidden units of all heads, a multiple of H (0: 2·M); with `tie`, W₁ = W₂.
    """

    options = HyperOptions
    source = (
        "[Mai et al. 2022, HyperMixer](https://arxiv.org/abs/2203.03691); "
        "[2023, HyperConformer](https://arxiv.org/abs/2305.18281)"
    )
    time = memory = "N·hidden"

    def __init__(
        self,
        name: str,
        backend: str,
        model_dim: int,
        heads: int,
        head_dim: int,
        dropout: float,
        options: HyperOptions,
    ) -> None:
        super().__init__(name, backend)
        hidden = options.hidden or 2 * model_dim
        for size, what in ((model_dim, "model_dim"), (hidden, "hidden")):
            if size % heads:
                raise UserError(f"attention {name!r}: {what}={size} is not a multiple of {heads} heads")
        self.read = HeadwiseMLP(heads, model_dim // heads, hidden // heads)  # W₁
        self.write = (
            self.read if options.tie else HeadwiseMLP(heads, model_dim // heads, hidden // heads)
        )  # W₂
        self.norm = nn.LayerNorm(model_dim)
        self.heads = heads
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Mix: [B, N, M] with [B] lengths to [B, N, M]."""
        x = without_padding(x, lengths)
        dtype = torch.promote_types(x.dtype, torch.float32)
        x_BNHD = x.unflatten(-1, (self.heads, -1))
        read_BNHU, write_BNHU = self.read(x_BNHD), self.write(x_BNHD)
        if lengths is not None:
            read_BNHU = zero_padding(read_BNHU, lengths)
        with torch.autocast(x.device.type, enabled=False):
            rows = (part.to(dtype).transpose(1, 2) for part in (read_BNHU, write_BNHU, x_BNHD))
            read_BHNU, write_BHNU, x_BHND = rows
            units_BHUD = nn.functional.gelu(read_BHNU.mT @ x_BHND)
            mixed_BNM = (self.dropout(write_BHNU) @ units_BHUD).transpose(1, 2).flatten(2)
        y = self.norm(mixed_BNM.to(read_BNHU.dtype)).to(read_BNHU.dtype)  # autocast normalises in float32
        return y if lengths is None else zero_padding(y, lengths)


class HeadwiseMLP(nn.Module):
    """An MLP of every position for each head: [B, N, H, D] to [B, N, H, U], hidden size D, GELU.

    Args:
        heads: H.
        size: D.
        units: U.
    """

    def __init__(self, heads: int, size: int, units: int) -> None:
        super().__init__()
        bound = size**-0.5  # as in nn.Linear
        self.hidden_HDD = nn.Parameter(torch.empty(heads, size, size).uniform_(-bound, bound))
        self.hidden_bias_HD = nn.Parameter(torch.empty(heads, size).uniform_(-bound, bound))
        self.output_HDU = nn.Parameter(torch.empty(heads, size, units).uniform_(-bound, bound))
        self.output_bias_HU = nn.Parameter(torch.empty(heads, units).uniform_(-bound, bound))

    def forward(self, x_BNHD: Tensor) -> Tensor:
        """Map every position and head."""
        hidden_BNHD = nn.functional.gelu(_dense(x_BNHD, self.hidden_HDD, self.hidden_bias_HD))
        return _dense(hidden_BNHD, self.output_HDU, self.output_bias_HU)


def _dense(x_BNHD: Tensor, weight_HDU: Tensor, bias_HU: Tensor) -> Tensor:
    """Apply each head's dense layer, in the dtype that autocast gives a matrix product."""
    product_BNHU = torch.einsum("bnhd,hdu->bnhu", x_BNHD, weight_HDU)
    return product_BNHU + bias_HU.to(product_BNHU.dtype)
