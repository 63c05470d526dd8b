"""Mel front ends of pretrained models: FastConformer (Rekesh et al. 2023) and wav2vec2-bert.

Convolutions are transformers' modules, but its forward passes aren't used, so that padding doesn't change
results.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.lengths import keep_mask, zero_padding
from asr.model.features import FilterBanks, FrontEnd
from asr.model.options import FeatureConfig

# Number of output frames that go through the convolutions together; it doesn't affect the result.
BLOCK_FRAMES = 500
LEAST_ENERGY, LEAST_DEVIATION = 2.0**-24, 1e-5  # as in NeMo
KALDI_FLOOR = 2.0**-23  # minimum energy for 16-bit samples


class SubsampledMel(FrontEnd):
    """Log-mel energies, normalised over the utterance, and strided convolutions, with fixed weights.

    Windows may extend beyond both ends of the utterance, where samples are zero. The convolutions stay frozen
    in fine-tuning, like those of wav2vec 2.0. Frames are computed in blocks to save memory.

    Args:
        encoder: encoder of transformers; its modules become part of this one.
        extractor: transformers' ParakeetFeatureExtractor.
    """

    in_graph = True
    normalise = True
    mel_FX: Tensor
    window: Tensor

    def __init__(self, encoder: Any, extractor: Any) -> None:
        super().__init__()
        self.layers = encoder.subsampling.layers.requires_grad_(False)
        self.factor = encoder.config.subsampling_factor
        self.hop, self.fft, self.preemphasis = extractor.hop_length, extractor.n_fft, extractor.preemphasis
        self.register_buffer("mel_FX", extractor.mel_filters, persistent=False)
        window = torch.hann_window(extractor.win_length, periodic=False)
        margin = self.fft - extractor.win_length
        self.register_buffer("window", F.pad(window, (margin // 2, margin - margin // 2)), persistent=False)
        # N frames need N shifts of samples.
        self.window_samples = self.shift_samples = self.hop * self.factor

    def frames(self, samples: Tensor) -> Tensor:
        """Return the number of frames in [B] samples, [B]."""
        return (samples // self.hop + self.factor - 1) // self.factor

    @torch.no_grad()
    def forward(self, audio_BS: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the latents.

        Args:
            audio_BS: [B, samples], right-padded with any values.
            lengths_B: [B] valid samples.

        Returns:
            [B, T, F] float32 with zeros at padded frames, and [B] valid frames.
        """
        with torch.autocast(audio_BS.device.type, enabled=False):
            emphasised_BS = self._emphasise(zero_padding(audio_BS.float(), lengths_B), lengths_B)
            mel_BTF = self._mel(emphasised_BS, lengths_B // self.hop)
            frames = self.frames(lengths_B)
            # A graph takes all frames at once, because their number is dynamic.
            if torch.compiler.is_compiling():
                return zero_padding(self._convolve(mel_BTF, lengths_B // self.hop), frames), frames
            total, f = int(self.frames(torch.tensor(audio_BS.shape[1]))), self.factor
            size = max(1, BLOCK_FRAMES // max(1, len(audio_BS)))
            blocks = [mel_BTF.new_zeros(len(mel_BTF), 0, self._width(mel_BTF.shape[-1]))]
            for start in range(0, total, size):
                # One more frame on the left, because the convolutions reach that far.
                before = min(start, 1)
                first, end = start - before, min(start + size, total)
                block = self._convolve(mel_BTF[:, f * first : f * end], lengths_B // self.hop - f * first)
                blocks.append(block[:, before : before + end - start])
            return zero_padding(torch.cat(blocks, 1), frames), frames

    def _width(self, bins: int) -> int:
        return self.layers[0].out_channels * (bins // self.factor)

    def _emphasise(self, audio_BS: Tensor, lengths_B: Tensor) -> Tensor:
        """Return x_t − p x_{t−1} within the utterance."""
        later_BS = audio_BS[:, 1:] - self.preemphasis * audio_BS[:, :-1]
        return zero_padding(torch.cat((audio_BS[:, :1], later_BS), 1), lengths_B)

    def _mel(self, audio_BS: Tensor, frames_B: Tensor) -> Tensor:
        """Return normalised log-mel energies, [B, T, F], zero after `frames_B`."""
        # A window for each whole shift of samples.
        padded_BS = F.pad(audio_BS, (self.fft // 2, self.fft - self.fft // 2 - self.hop))
        energies_BTF = mel_energies(
            padded_BS, self.window, self.mel_FX.mT, self.hop, BLOCK_FRAMES * self.factor
        )
        mel_BTF = energies_BTF.add_(LEAST_ENERGY).log_()
        return normalised(mel_BTF, frames_B, lambda variance: variance.sqrt() + LEAST_DEVIATION)

    def _convolve(self, mel_BTF: Tensor, frames_B: Tensor) -> Tensor:
        """Return the output of the convolutions, [B, T / factor rounded up, channels × bins]."""
        x_BCTF, frames_B = mel_BTF.unsqueeze(1), frames_B.clamp(min=0)
        for layer in self.layers:
            x_BCTF = layer(x_BCTF)
            if isinstance(layer, nn.Conv2d):
                if layer.stride[0] > 1:
                    frames_B = (frames_B + 1) // 2
                x_BCTF = x_BCTF * keep_mask(frames_B, x_BCTF.shape[2])[:, None, :, None]
        return x_BCTF.transpose(1, 2).flatten(2)


class ScaledProjection(nn.Module):
    """Projection of latents to the model size M, scaled by √M if the model is configured so."""

    masked_frame = None  # a masked frame is zeros

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.projection, self.scale = encoder.subsampling.linear, encoder.input_scale

    def forward(self, latents: Tensor, lengths: Tensor) -> Tensor:
        """Map [B, T, F] with [B] lengths to [B, T, M] with zeros at padded frames."""
        return zero_padding(self.projection(latents) * self.scale, lengths)


class StackedMel(FrontEnd):
    """Kaldi's log-mel energies, normalised over the utterance and stacked: the input of wav2vec2-bert.

    Args:
        bins: number of mel bins.
        stride: number of consecutive frames stacked into one.
        sample_rate: sample rate in Hz.
    """

    in_graph = True
    normalise = True

    def __init__(self, bins: int, stride: int, sample_rate: int) -> None:
        super().__init__()
        top = sample_rate / 2
        config = FeatureConfig(sample_rate, bins, low_freq_hz=20.0, high_freq_hz=top, floor=KALDI_FLOOR)
        self.banks, self.stride = FilterBanks(config), stride
        self.shift_samples = stride * self.banks.shift_samples
        self.window_samples = self.banks.window_samples + self.shift_samples - self.banks.shift_samples

    @torch.no_grad()
    def forward(self, audio_BS: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the features; see `SubsampledMel.forward`."""
        if not torch.compiler.is_compiling():  # a graph gets at least one frame
            audio_BS = F.pad(audio_BS, (0, max(0, self.window_samples - audio_BS.shape[1])))
        mel_BTF, frames_B = self.banks(2.0**15 * audio_BS, lengths_B)  # Kaldi's samples are 16-bit integers
        mel_BTF = normalised(mel_BTF, frames_B, lambda variance: (variance + 1e-7).sqrt())
        stacked_BTF = torch.cat(mel_BTF.unfold(1, self.stride, self.stride).unbind(-1), -1)
        frames_B = self.frames(lengths_B)
        return zero_padding(stacked_BTF, frames_B), frames_B


def mel_energies(audio_BS: Tensor, window_W: Tensor, mel_XF: Tensor, hop: int, block: int) -> Tensor:
    """Return the energies of all windows in mel bands.

    Args:
        audio_BS: samples.
        window_W: weights of a window's samples.
        mel_XF: weights of the W / 2 + 1 spectral lines.
        hop: number of samples between windows.
        block: number of windows whose spectra are in memory together; doesn't affect the result.

    Returns:
        [B, T, F].
    """

    def energies(own_BS: Tensor) -> Tensor:
        spectra = torch.fft.rfft(own_BS.unfold(1, len(window_W), hop) * window_W)
        return spectra.real.square().addcmul_(spectra.imag, spectra.imag) @ mel_XF

    if torch.compiler.is_compiling():  # for a graph, in which the number of frames is dynamic
        return energies(audio_BS)
    frames = max(0, (audio_BS.shape[1] - len(window_W)) // hop + 1)
    energies_BTF = audio_BS.new_empty(len(audio_BS), frames, mel_XF.shape[1])
    size = max(1, block // max(1, len(audio_BS)))
    for start in range(0, frames, size):
        end = min(start + size, frames)
        own_BS = audio_BS[:, start * hop : (end - 1) * hop + len(window_W)]
        energies_BTF[:, start:end] = energies(own_BS)
    return energies_BTF


def normalised(x_BTF: Tensor, frames_B: Tensor, deviation: Callable[[Tensor], Tensor]) -> Tensor:
    """Return features with mean 0 over valid frames, divided by `deviation` of their unbiased variance."""
    keep_BT1 = keep_mask(frames_B, x_BTF.shape[1]).unsqueeze(-1)
    count_B11 = frames_B.clamp(min=1).view(-1, 1, 1)
    mean_B1F = torch.where(keep_BT1, x_BTF, 0.0).sum(1, keepdim=True, dtype=torch.float64) / count_B11
    centred_BTF = torch.where(keep_BT1, x_BTF - mean_B1F, 0.0)
    variance_B1F = centred_BTF.square().sum(1, keepdim=True) / (count_B11 - 1).clamp(min=1)
    return (centred_BTF / deviation(variance_B1F)).float()
