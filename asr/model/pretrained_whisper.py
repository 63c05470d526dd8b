"""Whisper's encoder (Radford et al. 2022) for recordings of any length; transformers pads them to 30 s.

Weights are kept in transformers' modules, but its forward pass isn't used: it requires inputs of one length,
whose padding changes the states. Here padding doesn't change results.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.hashing import number_layers
from asr.attention.layer import FrameRate
from asr.attention.pretrained_layers import adapted_layer
from asr.attention.products import Activated
from asr.attention.table import layer_names
from asr.config.schedule import Factor
from asr.errors import UserError
from asr.lengths import keep_mask, zero_padding
from asr.model.dropout import Dropout
from asr.model.features import FrontEnd
from asr.model.frames import through_blocks
from asr.model.pretrained_mel import mel_energies

# Number of frames whose spectra are in memory together; it doesn't affect the result.
BLOCK_FRAMES = 2000
LEAST_ENERGY = 1e-10
RANGE = 8.0  # in powers of ten


class WhisperMel(FrontEnd):
    """Whisper's log-mel energies, in powers of ten.

    A frame is centred on the first of its samples. Its window sees samples mirrored before the utterance, and
    zeros after it, as in a recording padded with silence.

    Args:
        extractor: transformers' WhisperFeatureExtractor.
    """

    in_graph = True
    mel_XF: Tensor
    window: Tensor

    def __init__(self, extractor: Any) -> None:
        super().__init__()
        self.fft = extractor.n_fft
        # A frame for each shift of samples, and one for the rest.
        self.window_samples = self.shift_samples = extractor.hop_length
        mel_XF = torch.from_numpy(extractor.mel_filters).float()
        self.register_buffer("mel_XF", mel_XF, persistent=False)
        self.register_buffer("window", torch.hann_window(self.fft), persistent=False)

    def frames(self, samples: Tensor) -> Tensor:
        """Return the number of frames in [B] samples, [B]."""
        return (samples + self.shift_samples - 1) // self.shift_samples

    @torch.no_grad()
    def forward(self, audio_BS: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the energies in float32, also under autocast.

        Args:
            audio_BS: [B, samples], right-padded with any values.
            lengths_B: [B] valid samples.

        Returns:
            [B, T, F] with zeros at padded frames, and [B] valid frames.
        """
        frames, half = self.frames(lengths_B), self.fft // 2
        audio_BS = zero_padding(audio_BS.float(), lengths_B)
        if not torch.compiler.is_compiling():  # a graph gets at least one frame
            audio_BS = F.pad(audio_BS, (0, max(0, 1 - audio_BS.shape[1])))
        mirrored_BS = F.pad(audio_BS, (0, half + 1))[:, 1 : half + 1].flip(1)
        # A window for each shift of samples, and one for the rest.
        audio_BS = torch.cat((mirrored_BS, F.pad(audio_BS, (0, self.fft - half - 1))), 1)
        with torch.autocast(audio_BS.device.type, enabled=False):
            energies_BTF = mel_energies(audio_BS, self.window, self.mel_XF, self.shift_samples, BLOCK_FRAMES)
            log_mel_BTF = energies_BTF.clamp_(min=LEAST_ENERGY).log10_()
        return zero_padding(log_mel_BTF, frames), frames


class WhisperScaling(nn.Module):
    """Limits log-mel energies to a range below the utterance's loudest, and scales them to about −1 … 1."""

    masked_frame = None  # a masked frame is zeros

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Scale [B, T, F] with [B] lengths; padded frames are zero."""
        padded_BT1 = ~keep_mask(lengths, features.shape[1]).unsqueeze(-1)
        loudest_B = features.masked_fill(padded_BT1, -torch.inf).flatten(1).amax(1)
        limited = features.maximum(loudest_B.view(-1, 1, 1) - RANGE)
        return zero_padding((limited + 4) / 4, lengths)


class WhisperBlock(nn.Module):
    """A transformer block with layer normalisation before each sublayer.

    Args:
        layer: layer of transformers; its attention module is replaced.
        attention: self-attention with the same weights.
    """

    def __init__(self, layer: Any, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.dropout = attention, Dropout(layer.dropout)
        self.attention_norm, self.feedforward_norm = layer.self_attn_layer_norm, layer.final_layer_norm
        inner = Dropout(layer.activation_dropout)
        self.feedforward = Activated(layer.fc1, layer.activation_fn, inner, layer.fc2)

    def forward(self, x: Tensor, lengths: Tensor, **rate: FrameRate) -> Tensor:
        """Map [B, T, M] with [B] lengths to [B, T, M]; `rate` goes to the attention."""
        x = x + self.dropout(self.attention(self.attention_norm(x), lengths, **rate))
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))


class WhisperEncoder(nn.Module):
    """Two convolutions, the second with stride 2; positions; and transformer blocks.

    Args:
        encoder: encoder of transformers; its modules become part of this one.
        attention: mechanism of all layers, or of each; see `Encoder`.
        backend: `auto`, `reference` or `native`.

    Attributes:
        positions: fixed table of positions, which limits the length of an utterance.
    """

    def __init__(self, encoder: Any, attention: str, backend: str) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([encoder.conv1, encoder.conv2])
        self.positions: nn.Embedding = encoder.embed_positions.requires_grad_(False)
        self.dropout = Dropout(encoder.dropout)
        self.blocks = nn.ModuleList(
            WhisperBlock(layer, adapted_layer(layer.self_attn, name, backend))
            for layer, name in zip(encoder.layers, layer_names(attention, len(encoder.layers)), strict=True)
        )
        number_layers(self.blocks)
        self.factors: list[Factor] = [1] * len(self.blocks)  # see `Encoder`
        self.norm, self.layer_drop = encoder.layer_norm, encoder.layerdrop

    def lengths(self, frames: Tensor) -> Tensor:
        """Return the number of encoder frames for [B] feature frames, [B]."""
        return (frames + 1) // 2

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        tap: Callable[[int, Tensor], Tensor] | None = None,
        silence: tuple[Tensor, int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Encode log-mel energies; see `PretrainedEncoder.forward`.

        Args:
            features, lengths, tap: see there.
            silence: [B] numbers of encoder frames before the silence that pads each input, and the length of
                the runs in which blocks see the silence; None: they see all frames.

        Raises:
            UserError: there are more frames than positions.
        """
        x = features
        for convolution in self.convolutions:
            x = F.gelu(convolution(zero_padding(x, lengths).mT)).mT
            lengths = lengths if convolution is self.convolutions[0] else self.lengths(lengths)
        x = self.dropout(zero_padding(x + self._positions(x.shape[1]), lengths))
        run_BT = None
        if silence is not None:
            heard_B1, frame_T = silence[0].unsqueeze(-1), torch.arange(x.shape[1], device=x.device)
            run_BT = frame_T.minimum(heard_B1) + (frame_T - heard_B1).clamp(min=0) // silence[1]
        layer_drop = self.layer_drop if self.training else 0.0
        x = through_blocks(self.blocks, self.factors, x, lengths, layer_drop, tap, run_BT=run_BT)
        return zero_padding(self.norm(x), lengths), lengths

    def _positions(self, frames: int) -> Tensor:
        """Return the first T positions, [T, M]; in a graph, positions beyond the table are NaN."""
        most = self.positions.num_embeddings
        if torch.compiler.is_compiling():
            table = F.pad(self.positions.weight, (0, 0, 0, 1), value=torch.nan)
            return table[torch.arange(frames, device=table.device).clamp(max=most)]
        if frames > most:
            raise UserError(
                f"expected at most {most} encoder frames, the positions of this Whisper encoder, found "
                f"{frames}"
            )
        return self.positions.weight[:frames]
