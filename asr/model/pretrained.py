"""Encoders of pretrained speech models in transformers: wav2vec 2.0 and its relatives.

Weights are kept in transformers' modules, but its forward passes aren't used, because padding changes their
results through group normalisation over time. Here an utterance has the same states in any batch: those that
transformers computes for it alone, without padding.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from asr.attention.hashing import number_layers
from asr.attention.pretrained_layers import GatedBiasAttention, adapted_layer, feed_forward
from asr.attention.table import layer_names
from asr.config.schedule import Factor
from asr.lengths import keep_mask, zero_padding
from asr.model.features import FrontEnd
from asr.model.frames import through_blocks
from asr.model.pretrained_conformer import ConformerEncoder
from asr.model.pretrained_folder import WHISPER, feature_extractor, window_and_shift
from asr.model.pretrained_mel import ScaledProjection, StackedMel, SubsampledMel
from asr.model.pretrained_whisper import WhisperEncoder, WhisperMel, WhisperScaling

# Number of frames that go through the convolutions together; it doesn't affect the result.
BLOCK_FRAMES = 2000


class ConvolutionalFrontEnd(FrontEnd):
    """Convolutions from samples to latents, with fixed weights.

    They stay frozen in fine-tuning, as in the papers (*wav2vec 2.0*, Baevski et al. 2020, section 4.3). They
    have no padding, so a frame's window lies within the utterance. Frames are computed in blocks, so that a
    long recording needs little more memory than its latents.

    Args:
        model: model of transformers; its modules become part of this one.
        normalise: whether the samples of an utterance are scaled to mean 0 and variance 1.
    """

    in_graph = True

    def __init__(self, model: Any, normalise: bool) -> None:
        super().__init__()
        self.normalise = normalise
        self.layers = model.feature_extractor.conv_layers.requires_grad_(False)
        self.size = model.config.conv_dim[-1]
        self.window_samples, self.shift_samples = window_and_shift(
            model.config.conv_kernel, model.config.conv_stride
        )

    @torch.no_grad()
    def forward(self, audio_BS: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the latents.

        Args:
            audio_BS: [B, samples], right-padded with any values.
            lengths_B: [B] valid samples.

        Returns:
            [B, T, F] float32 with zeros at padded frames, and [B] valid frames.
        """
        frames = self.frames(lengths_B)
        audio_BS = zero_padding(audio_BS.float(), lengths_B)
        if self.normalise:
            audio_BS = zero_mean_unit_variance(audio_BS, lengths_B)
        # A graph processes all frames at once, because their number is dynamic.
        if torch.compiler.is_compiling():
            first = self._first_layer(audio_BS, lengths_B, None)
            return self._latents(audio_BS, first, frames), frames
        shortfall = self.window_samples - audio_BS.shape[1]
        if shortfall > 0:
            audio_BS = nn.functional.pad(audio_BS, (0, shortfall))
        total = int(self.frames(torch.tensor(audio_BS.shape[1])))
        size = max(1, BLOCK_FRAMES // max(1, len(audio_BS)))
        first = self._first_layer(audio_BS, lengths_B, size * self.shift_samples)
        latents = audio_BS.new_empty(len(audio_BS), total, self.size)
        for start in range(0, total, size):
            end = min(start + size, total)
            last_sample = (end - 1) * self.shift_samples + self.window_samples
            block_BS = audio_BS[:, start * self.shift_samples : last_sample]
            latents[:, start:end] = self._latents(block_BS, first, frames - start)
        return latents, frames

    def _latents(self, audio_BS: Tensor, first: Callable[[Tensor], Tensor], frames_B: Tensor) -> Tensor:
        """Return the latents of samples [B, T, F], zero after `frames_B`."""
        x_BFT = first(audio_BS[:, None])
        for layer in list(self.layers)[1:]:
            x_BFT = layer(x_BFT)
        return zero_padding(x_BFT.mT.float(), frames_B)

    def _first_layer(
        self, audio_BS: Tensor, lengths_B: Tensor, block_samples: int | None
    ) -> Callable[[Tensor], Tensor]:
        """Return the first layer; its group normalisation, if any, uses the valid frames only."""
        layer: Any = self.layers[0]
        norm = getattr(layer, "layer_norm", None)
        if not isinstance(norm, nn.GroupNorm):
            return layer
        (kernel,), (stride,) = layer.conv.kernel_size, layer.conv.stride
        frames_B = torch.div(lengths_B - kernel, stride, rounding_mode="floor") + 1
        if block_samples is None:
            blocks = [(0, audio_BS)]
        else:
            size = block_samples // stride
            starts = range(0, (audio_BS.shape[1] - kernel) // stride + 1, size)
            blocks = [(x, audio_BS[:, x * stride : (x + size - 1) * stride + kernel]) for x in starts]
        sums_2BF = sum(masked_sums(layer.conv(block[:, None]), frames_B - start) for start, block in blocks)
        mean_BF, square_BF = sums_2BF / frames_B.clamp(min=1).unsqueeze(-1)
        variance_BF = (square_BF - mean_BF.square()).clamp(min=0)
        scale_BF1 = (norm.weight / (variance_BF + norm.eps).sqrt()).float().unsqueeze(-1)
        mean_BF1, bias_F1 = mean_BF.float().unsqueeze(-1), norm.bias.unsqueeze(-1)
        return lambda x_B1S: layer.activation((layer.conv(x_B1S) - mean_BF1) * scale_BF1 + bias_F1)


def masked_sums(x_BFT: Tensor, frames_B: Tensor) -> Tensor:
    """Return the sums of values and of their squares over valid frames, [2, B, F] float64."""
    x_BFT = x_BFT.float().masked_fill(~keep_mask(frames_B, x_BFT.shape[-1])[:, None], 0.0)
    return torch.stack((x_BFT.sum(-1, dtype=torch.float64), x_BFT.square().sum(-1, dtype=torch.float64)))


def zero_mean_unit_variance(audio_BS: Tensor, lengths_B: Tensor) -> Tensor:
    """Scale the samples of each utterance as transformers' Wav2Vec2FeatureExtractor does.

    Args:
        audio_BS: [B, samples], zero at padded samples.
        lengths_B: [B] valid samples.

    Returns:
        [B, samples] with zeros at padded samples.
    """
    count_B1 = lengths_B.clamp(min=1).unsqueeze(-1)
    centred_BS = zero_padding(audio_BS - audio_BS.sum(-1, keepdim=True) / count_B1, lengths_B)
    variance_B1 = centred_BS.square().sum(-1, keepdim=True) / count_B1
    return centred_BS / (variance_B1 + 1e-7).sqrt()


class LatentProjection(nn.Module):
    """Layer normalisation of the convolutions' outputs (latents), and their projection to the model size.

    This is wav2vec 2.0's feature projection; a model without one passes latents unchanged.

    Attributes:
        masked_frame: learned vector [M] that SpecAugment writes to masked frames; None: zeros.
    """

    masked_frame: nn.Parameter | None

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.projection = model.feature_projection if hasattr(model, "feature_projection") else nn.Identity()
        self.masked_frame = getattr(model, "masked_spec_embed", None)

    def forward(self, latents: Tensor, lengths: Tensor) -> Tensor:
        """Map [B, T, F] with [B] lengths to [B, T, M] with zeros at padded frames."""
        projected = self.projection(latents)
        return zero_padding(projected[0] if isinstance(projected, tuple) else projected, lengths)


class PretrainedBlock(nn.Module):
    """A transformer block: layer normalisation before (`do_stable_layer_norm`) or after each sublayer.

    Args:
        layer: layer of transformers; its attention module is replaced.
        attention: self-attention with the same weights.
        stable: whether normalisation comes before each sublayer.
    """

    def __init__(self, layer: Any, attention: nn.Module, stable: bool) -> None:
        super().__init__()
        self.attention = attention
        self.dropout = layer.dropout
        self.attention_norm, self.feedforward_norm = layer.layer_norm, layer.final_layer_norm
        self.feedforward = layer.feed_forward
        self.adapter = getattr(layer, "adapter_layer", None)  # per language, in multilingual models
        self.stable = stable

    def forward(self, x: Tensor, lengths: Tensor, **bias: Any) -> Tensor:
        """Map [B, T, M] with [B] lengths to [B, T, M]; `bias` and `rate` go to the attention."""
        if not self.stable:
            x = self.attention_norm(x + self.dropout(self.attention(x, lengths, **bias)))
            return self.feedforward_norm(x + feed_forward(self.feedforward, x))
        x = x + self.dropout(self.attention(self.attention_norm(x), lengths, **bias))
        x = x + feed_forward(self.feedforward, self.feedforward_norm(x))
        return x if self.adapter is None else x + self.adapter(x)


class PretrainedEncoder(nn.Module):
    """Transformer of a pretrained model, with exchangeable attention.

    In training, each block is skipped for each utterance with probability `layerdrop`. LayerDrop (Fan et al.
    2019) draws once per batch, but distributed training needs every parameter in every step.

    Args:
        model: model of transformers; its modules become part of this one.
        attention: mechanism of all layers, or of each; see `Encoder`.
        backend: `auto`, `reference` or `native`.
    """

    def __init__(self, model: Any, attention: str, backend: str) -> None:
        super().__init__()
        config, encoder = model.config, model.encoder
        stable = bool(getattr(config, "do_stable_layer_norm", False))
        self.positions = encoder.pos_conv_embed
        self.input_norm = nn.Identity() if stable else encoder.layer_norm
        self.dropout = encoder.dropout
        self.blocks = nn.ModuleList(
            PretrainedBlock(layer, adapted_layer(layer.attention, name, backend), stable)
            for layer, name in zip(encoder.layers, layer_names(attention, len(encoder.layers)), strict=True)
        )
        number_layers(self.blocks)
        self.norm = encoder.layer_norm if stable else nn.Identity()
        self.output_dropout = nn.Dropout(config.final_dropout)
        self.factors: list[Factor] = [1] * len(self.blocks)  # see `Encoder`
        self.layer_drop = config.layerdrop

    def lengths(self, frames: Tensor) -> Tensor:
        """Return the number of encoder frames for [B] feature frames, [B]."""
        return frames

    def forward(
        self, features: Tensor, lengths: Tensor, tap: Callable[[int, Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode projected latents; see `Encoder.forward`.

        Args:
            features: [B, T, M].
            lengths: [B] valid frames.
            tap: see `Encoder.forward`.

        Returns:
            States [B, T, M] and [B] valid frames.
        """
        x = zero_padding(features, lengths)
        x = self.dropout(self.input_norm(x + self.positions(x)))
        layer_drop = self.layer_drop if self.training else 0.0
        bias = self._distance_bias
        x = through_blocks(self.blocks, self.factors, x, lengths, layer_drop, tap, positions=bias)
        return self.output_dropout(self.norm(x)), lengths

    def _distance_bias(self, frames: int, distance: int) -> dict[str, Tensor]:
        """Return WavLM's relative position bias, which its layers share."""
        first = self.blocks[0].attention
        if not isinstance(first, GatedBiasAttention):
            return {}
        return {"bias_HR": first.distance_bias(frames, distance)}


Parts = tuple[
    ConvolutionalFrontEnd | SubsampledMel | StackedMel | WhisperMel,
    LatentProjection | ScaledProjection | WhisperScaling,
    PretrainedEncoder | ConformerEncoder | WhisperEncoder,
]


def pretrained_parts(model: Any, pretrained: dict[str, Any], attention: str, backend: str) -> Parts:
    """Return front end, projection and encoder with the weights of a model.

    Args:
        model: model of transformers, from `empty_model` or `trained_model`.
        pretrained: see `read_pretrained`.
        attention, backend: see `PretrainedEncoder`.

    Raises:
        UserError: the mechanism doesn't fit the model.
    """
    if pretrained["transformers"]["model_type"] == WHISPER:
        mel = WhisperMel(feature_extractor(pretrained))
        return mel, WhisperScaling(), WhisperEncoder(model, attention, backend)
    if "mel" in pretrained:
        encoder = ConformerEncoder(model, model.config, attention, backend)
        return SubsampledMel(model, feature_extractor(pretrained)), ScaledProjection(model), encoder
    if "stacked" in pretrained:
        front_end: Any = StackedMel(**pretrained["stacked"], sample_rate=pretrained["sample_rate"])
    else:
        front_end = ConvolutionalFrontEnd(model, pretrained["normalise"])
    if hasattr(model.encoder.layers[0], "conv_module"):
        conformer = ConformerEncoder(model.encoder, model.config, attention, backend)
        return front_end, LatentProjection(model), conformer
    return front_end, LatentProjection(model), PretrainedEncoder(model, attention, backend)
