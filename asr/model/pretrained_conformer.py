"""Pretrained Conformers (Gulati et al. 2020) in transformers, with exchangeable attention.

Weights are kept in transformers' modules, but its forward passes aren't used, so that padding doesn't change
results.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.hashing import number_layers
from asr.attention.layer import SelfAttentionLayer
from asr.attention.pretrained_layers import feed_forward
from asr.attention.relative import RelativeAttention, conformer_attention
from asr.attention.table import layer_names
from asr.config.schedule import Factor
from asr.lengths import zero_padding
from asr.model.frames import through_blocks


class Sublayers(NamedTuple):
    """Modules of a layer of transformers, and the places of dropout outside these modules."""

    feedforward_norm: nn.Module
    feedforward: nn.Module
    attention_norm: nn.Module
    attention: nn.Module
    attention_dropout: nn.Module
    convolution_norm: nn.Module
    convolution: "Convolution"
    last_feedforward_norm: nn.Module
    last_feedforward: nn.Module
    norm: nn.Module
    dropout: nn.Module


class Convolution(nn.Module):
    """Gated pointwise, depthwise and pointwise convolution.

    Batch normalisation keeps its published statistics, in training, too, so other utterances don't change
    results.

    Args:
        module: convolution module of a layer of transformers.
        norm: normalisation after the depthwise convolution.
    """

    def __init__(self, module: Any, norm: nn.BatchNorm1d | nn.LayerNorm) -> None:
        super().__init__()
        self.pointwise_conv1, self.depthwise_conv = module.pointwise_conv1, module.depthwise_conv
        self.norm, self.activation, self.pointwise_conv2 = norm, module.activation, module.pointwise_conv2
        self.dropout = getattr(module, "dropout", nn.Identity())
        # wav2vec2-bert's convolution is causal and has no padding.
        self.before = 0 if self.depthwise_conv.padding[0] else self.depthwise_conv.kernel_size[0] - 1

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map [B, T, M] with [B] lengths to [B, T, M]."""
        x_BTM = zero_padding(F.glu(self.pointwise_conv1(x.mT), dim=1).mT, lengths)
        x_BMT = self.depthwise_conv(F.pad(x_BTM.mT, (self.before, 0)))
        norm = self.norm
        if isinstance(norm, nn.LayerNorm):
            x_BMT = norm(x_BMT.mT).mT
        else:
            statistics = norm.running_mean, norm.running_var
            x_BMT = F.batch_norm(x_BMT, *statistics, norm.weight, norm.bias, eps=norm.eps)
        output_BMT: Tensor = self.dropout(self.pointwise_conv2(self.activation(x_BMT))).mT
        return output_BMT


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention, convolution, half a feed-forward layer, layer normalisation.

    Args:
        sublayers: modules of transformers.
        attention: self-attention with the weights of transformers' attention module.
    """

    def __init__(self, sublayers: Sublayers, attention: SelfAttentionLayer) -> None:
        super().__init__()
        self.attention, self.attention_dropout = attention, sublayers.attention_dropout
        self.feedforward_norm, self.feedforward = sublayers.feedforward_norm, sublayers.feedforward
        self.attention_norm, self.dropout = sublayers.attention_norm, sublayers.dropout
        self.convolution_norm, self.convolution = sublayers.convolution_norm, sublayers.convolution
        self.last_feedforward_norm = sublayers.last_feedforward_norm
        self.last_feedforward, self.norm = sublayers.last_feedforward, sublayers.norm

    def forward(self, x: Tensor, lengths: Tensor, **positions: Any) -> Tensor:
        """Map [B, T, M] with [B] lengths to [B, T, M]; `positions` and `rate` go to the attention."""
        x = x + 0.5 * self.dropout(feed_forward(self.feedforward, self.feedforward_norm(x)))
        x = x + self.attention_dropout(self.attention(self.attention_norm(x), lengths, **positions))
        x = x + self.dropout(self.convolution(self.convolution_norm(x), lengths))
        x = x + 0.5 * self.dropout(feed_forward(self.last_feedforward, self.last_feedforward_norm(x)))
        normed: Tensor = self.norm(x)
        return normed


def sublayers(layer: Any, config: Any) -> Sublayers:
    """Return the modules of a layer of Parakeet or wav2vec2-bert."""
    if hasattr(layer, "feed_forward1"):
        dropout = nn.Dropout(config.dropout)
        return Sublayers(
            layer.norm_feed_forward1,
            layer.feed_forward1,
            layer.norm_self_att,
            layer.self_attn,
            dropout,
            layer.norm_conv,
            Convolution(layer.conv, layer.conv.norm),
            layer.norm_feed_forward2,
            layer.feed_forward2,
            layer.norm_out,
            dropout,
        )
    module = layer.conv_module
    return Sublayers(
        layer.ffn1_layer_norm,
        layer.ffn1,
        layer.self_attn_layer_norm,
        layer.self_attn,
        layer.self_attn_dropout,
        module.layer_norm,
        Convolution(module, module.depthwise_layer_norm),
        layer.ffn2_layer_norm,
        layer.ffn2,
        layer.final_layer_norm,
        nn.Identity(),
    )


class ConformerEncoder(nn.Module):
    """Blocks of a conformer, with exchangeable attention; LayerDrop as in `PretrainedEncoder`.

    Args:
        encoder: encoder of transformers; its modules become part of this one.
        config: configuration of the encoder.
        attention: mechanism of all layers, or of each; see `Encoder`.
        backend: `auto`, `reference` or `native`.
    """

    def __init__(self, encoder: Any, config: Any, attention: str, backend: str) -> None:
        super().__init__()
        modules = [sublayers(layer, config) for layer in encoder.layers]
        names = layer_names(attention, len(modules))
        self.blocks = nn.ModuleList(
            ConformerBlock(module, conformer_attention(module.attention, name, backend))
            for module, name in zip(modules, names, strict=True)
        )
        number_layers(self.blocks)
        self.dropout = nn.Dropout(getattr(config, "dropout", getattr(config, "hidden_dropout", 0.0)))
        self.norm = getattr(encoder, "layer_norm", nn.Identity())
        self.output_dropout = nn.Dropout(getattr(config, "final_dropout", 0.0))
        self.factors: list[Factor] = [1] * len(self.blocks)  # see `Encoder`
        self.layer_drop = config.layerdrop

    def lengths(self, frames: Tensor) -> Tensor:
        """Return the number of encoder frames for [B] feature frames, [B]."""
        return frames

    def forward(
        self, features: Tensor, lengths: Tensor, tap: Callable[[int, Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode projected latents; see `PretrainedEncoder.forward`."""
        x = self.dropout(features)
        layer_drop = self.layer_drop if self.training else 0.0
        x = through_blocks(self.blocks, self.factors, x, lengths, layer_drop, tap, positions=self._waves)
        return zero_padding(self.output_dropout(self.norm(x)), lengths), lengths

    def _waves(self, frames: int, distance: int) -> dict[str, Tensor]:
        """Return the sinusoids of relative positions, which all layers share."""
        first: Any = self.blocks[0].attention
        if not isinstance(first, RelativeAttention):
            return {}
        return {"waves_2NK": first.waves(frames, distance, first.position.weight.device)}
