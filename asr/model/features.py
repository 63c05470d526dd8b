"""Kaldi-compatible log-mel filter banks, computed on the model's device, and their normalisation."""

import logging
import math
import warnings

import torch
from lhotse.features.kaldi.layers import Wav2LogFilterBank
from torch import Tensor, nn

from asr.errors import UserError
from asr.lengths import keep_mask, zero_padding
from asr.model.options import NORMALISATIONS, FeatureConfig

log = logging.getLogger(__name__)

# Number of frames whose spectra are in memory together, few enough for a CPU's cache. It doesn't affect the
# result.
BLOCK_FRAMES = 500
GPU_BLOCK_FRAMES = 100_000

# Minimum standard deviation that normalisation divides by, in nats: far above the rounding error of a log
# energy (1e-6), and below the deviation of any sound (noise has 1 / √n in a filter over n spectral lines).
# Otherwise rounding errors of a mel bin without sound, as above 4 kHz in telephone speech, would be scaled up
# to the level of speech.
LEAST_DEVIATION = 0.1

# Distance in nats (70 dB) below a recording's loudest energy at which a mel bin counts as silent. In speech
# at 16 kHz, every bin comes within 64 dB of the loudest at some time; in telephone speech, bins above 4 kHz
# contain only leakage of the window, 75 to 115 dB below. Normalisation would scale it up to the level of
# speech.
SILENT_BIN = 7 * math.log(10)

# Range of a recording's log energies in nats: 96 dB, as of 16-bit samples. Otherwise digital silence, as in a
# muted channel, would lie so far below the rest that it would determine the deviations.
RANGE = 9.6 * math.log(10)


# Window of `normalise=window` in seconds: several sentences, so that its mean depends little on the words.
WINDOW_S = 10.0


class FrontEnd(nn.Module):
    """Maps samples to frames; each frame's window lies entirely within the utterance.

    Attributes:
        window_samples: length of a window.
        shift_samples: distance between the windows of consecutive frames.
        in_graph: whether an exported graph computes the frames.
        normalise: whether the frames are independent of the level of the samples.
    """

    window_samples: int
    shift_samples: int
    in_graph = False
    normalise = False

    def frames(self, samples: Tensor) -> Tensor:
        """Return the number of frames in [B] samples, [B]."""
        whole = torch.div(samples - self.window_samples, self.shift_samples, rounding_mode="floor") + 1
        return whole.clamp(min=0)


class FilterBanks(FrontEnd):
    """Log-mel energies as computed by Kaldi's compute-fbank-feats (snip-edges, no dither).

    Each frame's window lies entirely within the utterance, so a frame depends neither on padding nor on other
    utterances in the batch. Samples are expected in −1 … 1. Frames are computed in blocks, so that a long
    recording needs little more memory than its features.

    Args:
        config: sizes and rates.

    Example:
        >>> banks = FilterBanks(FeatureConfig(mel_bins=40))
        >>> features, frames = banks(torch.randn(2, 16000), torch.tensor([16000, 800]))
        >>> features.shape, frames.tolist()
        (torch.Size([2, 98, 40]), [98, 3])
    """

    def __init__(self, config: FeatureConfig) -> None:
        super().__init__()
        self.mel_bins = config.mel_bins
        with warnings.catch_warnings():  # lhotse warns about frame counts with snip_edges; handled here
            warnings.simplefilter("ignore")
            self.layer = Wav2LogFilterBank(
                sampling_rate=config.sample_rate,
                frame_length=config.frame_length_ms / 1000,
                frame_shift=config.frame_shift_ms / 1000,
                num_filters=config.mel_bins,
                low_freq=config.low_freq_hz,
                high_freq=config.high_freq_hz,
                snip_edges=True,
                dither=0.0,
            )
        if empty := int((self.layer._fb == 0).all(dim=0).sum()):
            log.warning(
                "features.mel_bins=%d: %d filters lie between the spectral lines at %d Hz, always empty",
                *(config.mel_bins, empty, config.sample_rate),
            )
        self.floor = config.floor
        # lhotse's values: it rounds 9 ms at 24 kHz to 215 samples
        self.window_samples, self.shift_samples = self.layer.wav2win._length, self.layer.wav2win._shift

    @torch.no_grad()
    def forward(self, audio_BS: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the filter banks in float32, also under autocast.

        Args:
            audio_BS: [B, samples], right-padded with any values.
            lengths_B: [B] valid samples.

        Returns:
            [B, T, F] with zeros at padded frames, and [B] valid frames.
        """
        frames = self.frames(lengths_B)
        if torch.compiler.is_compiling():  # for a graph, in which the number of frames is dynamic
            return zero_padding(self._log_mel(audio_BS.float()), frames), frames
        shortfall = self.window_samples - audio_BS.shape[1]
        if shortfall > 0:
            audio_BS = nn.functional.pad(audio_BS, (0, shortfall))
        total = int(self.frames(torch.tensor(audio_BS.shape[1])))
        features = audio_BS.new_empty(audio_BS.shape[0], total, self.mel_bins, dtype=torch.float32)
        budget = BLOCK_FRAMES if audio_BS.device.type == "cpu" else GPU_BLOCK_FRAMES
        size = max(1, budget // max(1, audio_BS.shape[0]))
        with torch.autocast(audio_BS.device.type, enabled=False):
            for start in range(0, total, size):
                end = min(start + size, total)
                first_sample = start * self.shift_samples
                last_sample = (end - 1) * self.shift_samples + self.window_samples
                block = self._log_mel(audio_BS[:, first_sample:last_sample].float())
                features[:, start:end] = zero_padding(block, frames - start)
        return features, frames

    def _log_mel(self, audio_BS: Tensor) -> Tensor:
        """Return the result of `self.layer`, [B, T, F], with half as many passes over the frames.

        A frame x with mean m gives w_i (x_i − m − p (x_{i−1} − m)) = w_i (x_i − p x_{i−1} − (1 − p) m), so
        samples are pre-emphasised before overlapping frames repeat them. A frame's first sample, which has no
        predecessor, has the weight w_0 = 0.
        """
        window, p = self.layer.wav2win._window, self.layer.wav2win.preemph_coeff
        means_BT1 = audio_BS.unfold(1, self.window_samples, self.shift_samples).mean(dim=2, keepdim=True)
        emphasised_BS = nn.functional.pad(torch.sub(audio_BS[:, 1:], audio_BS[:, :-1], alpha=p), (1, 0))
        frames_BTW = emphasised_BS.unfold(1, self.window_samples, self.shift_samples)
        rest = self.layer.fft_length - self.window_samples
        if torch.compiler.is_compiling():
            padded = nn.functional.pad((frames_BTW - (1 - p) * means_BT1) * window, (0, rest))
        else:  # in place, which is impossible in a graph with a dynamic batch
            padded = audio_BS.new_zeros(*frames_BTW.shape[:2], self.layer.fft_length)
            torch.sub(frames_BTW, (1 - p) * means_BT1, out=padded[..., : self.window_samples])
            padded[..., : self.window_samples] *= window
        spectra = torch.fft.rfft(padded)
        power = spectra.real.square().addcmul_(spectra.imag, spectra.imag)
        return (power @ self.layer._fb).clamp_(min=self.floor).log_()


class Normalisation(nn.Module):
    """Mean–variance normalisation of filter banks.

    `utterance` uses the statistics of the whole utterance, which differ between short utterances and long
    recordings. `window` uses those of the frames around each frame, as in Kaldi's apply-cmvn-sliding
    --center; for utterances no longer than the window, it equals `utterance`. Deviations are at least
    `LEAST_DEVIATION`. Energies more than `RANGE` below the utterance's loudest are raised to this limit, and
    a bin that stays more than `SILENT_BIN` below the loudest becomes zero, the mean: both are independent of
    the recording's level.

    `corpus` uses the statistics of the training set only, and the range lies below its loudest mean. A frame
    then depends on no other frame, so streams can be recognised; see `asr.model.streaming`.

    Args:
        kind: `utterance`, `window`, `corpus` or `none`.
        mel_bins: F.
        window_frames: window length for `window`.
    """

    mean: Tensor
    std: Tensor
    masked_frame: Tensor | None = None  # a masked frame is zeros, the mean

    def __init__(self, kind: str, mel_bins: int, window_frames: int = 1000) -> None:
        super().__init__()
        if kind not in NORMALISATIONS:
            raise UserError(f"features.normalise={kind!r}: expected one of {', '.join(NORMALISATIONS)}")
        self.kind = kind
        self.window_frames = window_frames
        self.register_buffer("mean", torch.zeros(mel_bins))
        self.register_buffer("std", torch.ones(mel_bins))

    @property
    def framewise(self) -> bool:
        """Whether each frame is normalised by itself."""
        return self.kind in ("corpus", "none")

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Normalise [B, T, F]; padded frames stay zero."""
        if self.kind == "none":
            return features
        if self.kind == "corpus":
            raised = features.maximum(self.mean.max() - RANGE)
            return zero_padding((raised - self.mean) / self.std, lengths)
        keep = keep_mask(lengths, features.shape[1]).unsqueeze(-1)
        peaks_B1F = torch.where(keep, features, -math.inf).amax(dim=1, keepdim=True)
        loudest_B11 = peaks_B1F.amax(dim=2, keepdim=True)
        features = torch.where(keep, features.maximum(loudest_B11 - RANGE), 0.0)
        silent_B1F = peaks_B1F < loudest_B11 - SILENT_BIN
        return self._scaled(features, lengths, keep).masked_fill_(silent_B1F, 0.0)

    def _scaled(self, features: Tensor, lengths: Tensor, keep: Tensor) -> Tensor:
        if self.kind == "window":
            parts = features.split(16, dim=2)  # limits the memory for float64
            return torch.cat([self._sliding(part, lengths) for part in parts], dim=2)
        count = lengths.clamp(min=1).view(-1, 1, 1)
        mean = features.sum(dim=1, keepdim=True) / count
        # A sum's rounding error depends on the padded length and the runtime; the second pass removes it.
        mean = mean + torch.where(keep, features - mean, 0.0).sum(dim=1, keepdim=True) / count
        centred = torch.where(keep, features - mean, 0.0)
        std = (centred.square().sum(dim=1, keepdim=True) / count).sqrt()
        return centred / std.clamp(min=LEAST_DEVIATION)

    def _sliding(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Normalise by sums over a window, which is shifted inwards at the ends of the utterance."""
        T = features.shape[1]
        size = lengths.clamp(max=self.window_frames).unsqueeze(1)
        centre = torch.arange(T, device=features.device).unsqueeze(0)
        start = (centre - self.window_frames // 2).clamp(min=0).minimum(lengths.unsqueeze(1) - size)
        start = start.unsqueeze(-1).expand(-1, -1, features.shape[2])
        end = start + size.unsqueeze(-1)
        count = size.clamp(min=1).unsqueeze(-1)
        wide = zero_padding(features, lengths).double()  # sums over an hour exceed the precision of float32
        mean, square = (
            (sums.gather(1, end) - sums.gather(1, start)) / count
            for sums in (nn.functional.pad(x.cumsum(dim=1), (0, 0, 1, 0)) for x in (wide, wide.square()))
        )
        std = (square - mean.square()).clamp(min=0).sqrt()
        return zero_padding(((wide - mean) / std.clamp(min=LEAST_DEVIATION)).to(features.dtype), lengths)


class CorpusStatistics:
    """Running mean and standard deviation of frames, accumulated in float64."""

    def __init__(self, mel_bins: int) -> None:
        self.count = 0
        self.sum = torch.zeros(mel_bins, dtype=torch.float64)
        self.squares = torch.zeros(mel_bins, dtype=torch.float64)

    def update(self, features: Tensor, lengths: Tensor) -> None:
        """Add a batch [B, T, F] with [B] valid frames."""
        valid = features[keep_mask(lengths, features.shape[1])].double().cpu()
        self.count += len(valid)
        self.sum += valid.sum(dim=0)
        self.squares += valid.square().sum(dim=0)

    def store(self, normalisation: Normalisation) -> None:
        """Write the statistics into the buffers of a `corpus` normalisation."""
        if self.count == 0:
            raise UserError("features.normalise=corpus: expected training data, found no frame")
        mean = self.sum / self.count
        variance = (self.squares / self.count - mean.square()).clamp(min=LEAST_DEVIATION**2)
        normalisation.mean.copy_(mean)
        normalisation.std.copy_(variance.sqrt())
