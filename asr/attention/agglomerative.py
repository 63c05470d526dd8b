"""Agglomerative attention: every position reads averages over soft classes of positions."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from asr.attention.layer import OwnParameterLayer
from asr.attention.products import Linear
from asr.attention.softmax import without_padding
from asr.attention.spec import COUNT, causal_option
from asr.config import option
from asr.errors import UserError
from asr.lengths import zero_padding

# Lower bound on the size of a class: the derivative of an empty class's average divides by the size twice.
SMALLEST_CLASS = 1e-20


@dataclass
class AgglomerativeOptions:
    """Classes C, and whether queries and references share them."""

    classes: int = option(8, help="soft classes, C", affects="result", letter="C", minimum=1, maximum=COUNT)
    causal: bool = causal_option()
    tie: bool = option(False, help="use one classifier for queries and references", affects="result")


class AgglomerativeAttention(OwnParameterLayer):
    """Each class averages projections of its members; each position weighs the averages by its classes.

    Spellings 2019, *Agglomerative Attention*, Methods: c^r, c^q = softmax(xW + b), class values xP^k of width
    M/C, a^k = Σ_τ c^r_τk x_τ P^k / Σ_τ c^r_τk over the sequence (causal: over τ ≤ i), and output
    Q · concat_k(c^q_ik a^k). Sums are in float32. Time and memory are linear in N.

    Args:
        name, backend: see `OwnParameterLayer`.
        model_dim: M, a multiple of C.
        heads, head_dim: unused; classes replace heads.
        dropout: dropout probability on the class weights c^q.
        options: C; causal averages exclude later positions; with `tie`, c^r and c^q share one classifier
            (the paper uses two).
    """

    options = AgglomerativeOptions
    source = "[Spellings 2019, Agglomerative Attention](https://arxiv.org/abs/1907.06607)"
    time = memory = "N"

    def __init__(
        self,
        name: str,
        backend: str,
        model_dim: int,
        heads: int,
        head_dim: int,
        dropout: float,
        options: AgglomerativeOptions,
    ) -> None:
        super().__init__(name, backend)
        classes = options.classes
        if model_dim % classes:
            raise UserError(
                f"attention {name!r}: model_dim={model_dim} is not a multiple of {classes} classes"
            )
        self.classes, self.causal = classes, options.causal
        self.reference_classes = Linear(model_dim, classes)
        self.query_classes = self.reference_classes if options.tie else Linear(model_dim, classes)
        self.values = Linear(model_dim, model_dim, bias=False)  # the P^k side by side
        self.output = Linear(model_dim, model_dim, bias=False)  # Q
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Attend: [B, N, M] with [B] lengths to [B, N, M]."""
        x = without_padding(x, lengths)
        dtype = torch.promote_types(x.dtype, torch.float32)
        reference_BNC = self.reference_classes(x).to(dtype).softmax(-1)
        query_BNC = self.dropout(self.query_classes(x).to(dtype).softmax(-1))
        if lengths is not None:
            # The values at padding are zero already; this keeps padding out of the class sizes.
            reference_BNC = zero_padding(reference_BNC, lengths)
        values = self.values(x)
        values_BNCE = values.unflatten(-1, (self.classes, -1)).to(dtype)

        weighted_BNCE = reference_BNC.unsqueeze(-1) * values_BNCE
        if self.causal:
            sums_BNCE, sizes_BNC = weighted_BNCE.cumsum(1), reference_BNC.cumsum(1)
        else:
            sums_BNCE, sizes_BNC = weighted_BNCE.sum(1, keepdim=True), reference_BNC.sum(1, keepdim=True)
        averages_BNCE = sums_BNCE / sizes_BNC.clamp(min=SMALLEST_CLASS).unsqueeze(-1)
        y = self.output((query_BNC.unsqueeze(-1) * averages_BNCE).flatten(2).to(values.dtype))
        return y if lengths is None else zero_padding(y, lengths)
