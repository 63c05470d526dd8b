"""Self-attention layers with the weights of pretrained models, and any mechanism that fits."""

from typing import Any

import torch
from torch import Tensor, nn

from asr.attention.gated_bias import biased_attention
from asr.attention.layer import FrameRate, SelfAttentionLayer
from asr.attention.multihead import SelfAttention
from asr.attention.products import linear
from asr.attention.softmax import SoftmaxMechanism, filled_lengths, without_padding
from asr.attention.table import build_mechanism
from asr.errors import UserError
from asr.lengths import zero_padding
from attention_ext.gated_bias import GatedBias, LogitBias


def fitting_mechanism(name: str, backend: str, dropout: float = 0.0) -> SoftmaxMechanism:
    """Build a mechanism that can replace the attention of a pretrained model.

    Raises:
        UserError: the mechanism isn't of the softmax family, or needs keys tied to the queries.
    """
    mechanism = build_mechanism(name, backend, dropout)
    if not isinstance(mechanism, SoftmaxMechanism):
        raise UserError(f"attention {name!r} can't replace the softmax attention of a pretrained model")
    if mechanism.needs_shared_keys:
        raise UserError(
            f"attention {name!r} needs keys tied to the queries; pretrained models have a key projection"
        )
    return mechanism


def adapted_layer(attention: Any, name: str, backend: str) -> SelfAttentionLayer:
    """Return a self-attention layer with the weights of a transformers module.

    This is for models whose blocks this project runs itself: the mechanism is exchanged, moved, saved and
    exported like in any other layer.

    Args:
        attention: self-attention with `q_proj`, `k_proj`, `v_proj` and `out_proj`, as in wav2vec 2.0; its
            weights are shared.
        name: mechanism.
        backend: `auto`, `reference` or `native`.

    Raises:
        UserError: the mechanism doesn't fit.
    """
    if hasattr(attention, "gru_rel_pos_linear"):
        return GatedBiasAttention(attention, name, backend)
    model_dim, heads = attention.embed_dim, attention.num_heads
    mechanism = fitting_mechanism(name, backend, attention.dropout)
    layer = SelfAttention(mechanism, model_dim, heads, model_dim // heads)
    layer.query, layer.key = attention.q_proj, attention.k_proj
    layer.value, layer.output = attention.v_proj, attention.out_proj
    return layer


def feed_forward(module: Any, x: Tensor) -> Tensor:
    """Apply a feed-forward module of transformers, [B, T, M] to [B, T, M], on the faster products."""
    if not hasattr(module, "intermediate_dense"):  # Parakeet's
        y: Tensor = module(x)
        return y
    y = module.intermediate_dropout(linear(x, [module.intermediate_dense], module.intermediate_act_fn))
    return module.output_dropout(module.output_dense(y))


class BiasedAttention(SelfAttentionLayer):
    """Attention with a relative position bias in the logits, in plain PyTorch.

    Args:
        heads: H.
        dropout: dropout probability of the weights.
        name: mechanism.
        backend: `auto` or `reference`.

    Attributes:
        value, output: projections of subclasses.

    Raises:
        UserError: the mechanism or the backend doesn't fit.
    """

    mechanism: SoftmaxMechanism
    value: nn.Linear
    output: nn.Linear
    takes_rate = evenly_spaced = True

    def __init__(self, heads: int, dropout: float, name: str, backend: str) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.mechanism = self._fitting(name, backend)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Canonical name of the mechanism."""
        return self.mechanism.name

    def set_mechanism(self, name: str, backend: str | None = None) -> None:
        """Exchange the mechanism and keep the weights."""
        mechanism = self._fitting(name, backend or self.mechanism.backend.requested)
        self.mechanism = mechanism.to(next(self.parameters()).device).train(self.training)

    def backend_on(self, device_type: str) -> str:
        """Return `reference`."""
        return "reference"

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, rate: FrameRate | None = None, **given: Tensor
    ) -> Tensor:
        """Attend: [B, N, M] with [B] lengths to [B, N, M]; `given` goes to `logits`."""
        x, lengths = without_padding(x, lengths), filled_lengths(lengths, x)
        rate = rate or FrameRate(1, None)
        q, k, bias = self.logits(x, rate.factor, **given)
        v = self._split_heads(self.value(x))
        with torch.autocast(x.device.type, enabled=False):
            mixed = self.mix(q, k, v, bias, lengths, rate)
        return zero_padding(self.output(mixed.transpose(1, 2).flatten(2)), lengths)

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, bias: LogitBias, lengths: Tensor, rate: FrameRate
    ) -> Tensor:
        """Return the mixed values, [B, H, N, D]."""
        return biased_attention(self.mechanism, q, k, v, bias, lengths, rate.log_sizes_BN)

    def weights(self, name: str, x: Tensor, rate: FrameRate | None = None, **bias: Tensor) -> Tensor:
        """Return the dense attention weights of a mechanism, [B, H, N, N]."""
        mechanism = self.mechanism  # with the layer's own hash planes
        if name != self.name:
            mechanism = fitting_mechanism(name, mechanism.backend.requested).to(x.device).eval()
        q, k, given = self.logits(x, rate.factor if rate else 1, **bias)
        identity = torch.eye(q.shape[2], device=x.device).expand(*q.shape[:2], -1, -1)
        return biased_attention(mechanism, q, k, identity, given, filled_lengths(None, x))

    def logits(self, x: Tensor, distance: int, **given: Tensor) -> tuple[Tensor, Tensor, LogitBias]:
        """Return queries and keys, [B, H, N, D] each, and the bias of their logits.

        Args:
            x: [B, N, M].
            distance: distance between neighbours.
            given: tensors that the layers share.
        """
        raise NotImplementedError

    def _fitting(self, name: str, backend: str) -> SoftmaxMechanism:
        if backend not in ("auto", "reference"):
            raise UserError(f"backend {backend!r} can't add a bias to the logits: expected auto | reference")
        return fitting_mechanism(name, backend, self.dropout)

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class GatedBiasAttention(BiasedAttention):
    """WavLM's attention, with a gated relative position bias in the logits (Chen et al. 2022, eq. 4–7).

    The bias of a distance is learned and shared by all layers; the gate is computed from the query's input.

    Args:
        attention: WavLM's attention module in transformers; its weights are shared.
        name, backend: see `BiasedAttention`.
    """

    def __init__(self, attention: Any, name: str, backend: str) -> None:
        super().__init__(attention.num_heads, attention.dropout, name, backend)
        self.attention = attention

    @property
    def value(self) -> nn.Linear:  # type: ignore[override]
        """See `BiasedAttention`."""
        projection: nn.Linear = self.attention.v_proj
        return projection

    @property
    def output(self) -> nn.Linear:  # type: ignore[override]
        """See `BiasedAttention`."""
        projection: nn.Linear = self.attention.out_proj
        return projection

    def distance_bias(self, positions: int, distance: int = 1) -> Tensor:
        """Return the bias of −(N − 1) … N − 1 times `distance`, [H, 2N − 1]; in the first layer only."""
        last = positions * distance
        to_the_right_HN: Tensor = self.attention.compute_bias(1, last)[:, 0, ::distance]
        to_the_left_HN: Tensor = self.attention.compute_bias(last, 1)[:, ::distance, 0]
        return torch.cat((to_the_left_HN[:, 1:].flip(-1), to_the_right_HN), dim=-1)

    def logits(self, x: Tensor, distance: int, **given: Tensor) -> tuple[Tensor, Tensor, LogitBias]:
        """See `BiasedAttention`; `given` may contain `bias_HR`, the result of `distance_bias`."""
        attention, bias_HR = self.attention, given.get("bias_HR")
        q, k = self._split_heads(attention.q_proj(x)), self._split_heads(attention.k_proj(x))
        gates_BHN2 = (
            attention.gru_rel_pos_linear(self._split_heads(x)).unflatten(-1, (2, -1)).sum(-1).sigmoid()
        )
        update_BHN, reset_BHN = gates_BHN2.unbind(-1)
        gate_BHN = update_BHN * (reset_BHN * attention.gru_rel_pos_const.squeeze(-1) - 1) + 2
        if bias_HR is None:
            bias_HR = self.distance_bias(x.shape[1], distance)
        return q, k, GatedBias(gate_BHN, bias_HR)
