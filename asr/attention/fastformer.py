"""Fastformer: additive attention through one global query and one global key."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from asr.attention.layer import OwnParameterLayer
from asr.attention.products import Linear
from asr.attention.softmax import filled_lengths, without_padding
from asr.config import option
from asr.errors import UserError
from asr.lengths import zero_padding
from attention_ext.tensors import masked_softmax


@dataclass
class FastformerOptions:
    """Sharing of projections."""

    tie: bool = option(False, help="use one projection for queries and values", affects="result")


class Fastformer(OwnParameterLayer):
    """Additive attention through one global query and one global key of each head.

    r_i = W(k ∗ v_i) + q_i, with the global query q and the global key k.

    Wu et al. 2021, *Fastformer* (arXiv 2108.09084), section 3.2, with element-wise products ∗:

        α = softmax_i(w_q·q_i/√D),  q = Σ α_i q_i
        p_i = q ∗ k_i,  β = softmax_i(w_k·p_i/√D),  k = Σ β_i p_i

    W mixes all heads. Each head has its own w_q and w_k, as in the equations; in the authors' code, those of
    a head read all heads. In the paper's experiments, queries and values share a projection, as with `tie`.
    They also share parameters among layers; that isn't done here. The softmax is over valid positions, in
    float32. Without `tie`, a layer has 2·M parameters more than full attention: w_q and w_k of all heads.
    Time and memory are linear in N.

    Args:
        name, backend: see `OwnParameterLayer`.
        model_dim: M, a multiple of H.
        heads: H; D = M / H.
        head_dim: unused: q_i is added to the output, so D can't be chosen.
        dropout: dropout probability on the weights α and β.
        options: with `tie`, v_i = q_i.
    """

    options = FastformerOptions
    source = "[Wu et al. 2021, Fastformer](https://arxiv.org/abs/2108.09084)"
    time = memory = "N"

    def __init__(
        self,
        name: str,
        backend: str,
        model_dim: int,
        heads: int,
        head_dim: int,
        dropout: float,
        options: FastformerOptions,
    ) -> None:
        super().__init__(name, backend)
        if model_dim % heads:
            raise UserError(f"attention {name!r}: model_dim={model_dim} is not a multiple of {heads} heads")
        self.query, self.key = Linear(model_dim, model_dim), Linear(model_dim, model_dim)
        self.value = self.query if options.tie else Linear(model_dim, model_dim)
        self.transform = Linear(model_dim, model_dim)  # W
        bound = (model_dim // heads) ** -0.5  # as in nn.Linear
        self.weigh_query = nn.Parameter(torch.empty(heads, model_dim // heads).uniform_(-bound, bound))
        self.weigh_key = nn.Parameter(torch.empty(heads, model_dim // heads).uniform_(-bound, bound))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Attend: [B, N, M] with [B] lengths to [B, N, M]."""
        x, lengths = without_padding(x, lengths), filled_lengths(lengths, x)
        query_BNM = self.query(x)
        value_BNM = query_BNM if self.value is self.query else self.value(x)
        q_BHND, k_BHND = self._heads(query_BNM), self._heads(self.key(x))
        with torch.autocast(x.device.type, enabled=False):
            q_BH1D = self._pooled(q_BHND, self.weigh_query, lengths)
            k_BH1D = self._pooled(q_BH1D * k_BHND, self.weigh_key, lengths)
            mixed_BNM = (k_BH1D * self._heads(value_BNM)).transpose(1, 2).flatten(2)
        y = self.transform(mixed_BNM.to(query_BNM.dtype)) + query_BNM
        return zero_padding(y, lengths)

    def _heads(self, x_BNM: Tensor) -> Tensor:
        """Return [B, H, N, D] in float32 or wider."""
        x_BNHD = x_BNM.unflatten(-1, self.weigh_query.shape)
        return x_BNHD.transpose(1, 2).to(torch.promote_types(x_BNM.dtype, torch.float32))

    def _pooled(self, x_BHND: Tensor, weigh_HD: Tensor, lengths: Tensor) -> Tensor:
        """Return the sum over valid positions, weighted by softmax of products with w, [B, H, 1, D]."""
        # A matrix product would expand w to the batch, and torch.export would then refuse batches of one.
        w_H1D = weigh_HD.to(x_BHND.dtype).unsqueeze(1) * x_BHND.shape[-1] ** -0.5
        weights_BH1N = masked_softmax((x_BHND * w_H1D).sum(-1).unsqueeze(2), lengths)
        return self.dropout(weights_BH1N) @ x_BHND
