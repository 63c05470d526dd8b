"""Kaldi-compatible log-mel filter banks on the model's device, and their normalisation."""

import warnings
from dataclasses import dataclass

import torch
from lhotse.features.kaldi.layers import Wav2LogFilterBank
from torch import Tensor, nn

from asr.config import option
from asr.errors import UserError
from asr.lengths import keep_mask, zero_padding

NORMALISATIONS = ("utterance", "corpus", "none")


@dataclass
class FeatureConfig:
    """Filter banks: what the encoder sees."""

    sample_rate: int = option(16000, help="sample rate of the model; audio is resampled to it", unit="Hz")
    mel_bins: int = option(80, help="mel filters: 40 or 80 are usual")
    frame_length_ms: float = option(25.0, help="analysis window", unit="ms")
    frame_shift_ms: float = option(10.0, help="distance of successive frames", unit="ms")
    low_freq_hz: float = option(20.0, help="lower edge of the first filter", unit="Hz")
    high_freq_hz: float = option(-400.0, help="upper edge of the last; ≤ 0: below the Nyquist", unit="Hz")
    normalise: str = option("utterance", help=f"mean–variance normalisation: {' | '.join(NORMALISATIONS)}")


class FilterBanks(nn.Module):
    """Log-mel energies as Kaldi's compute-fbank-feats gives them (snip-edges, no dither).

    A frame exists only where its whole window lies inside the utterance, so neither padding nor
    batch mates can leak into it. The samples are expected in −1 … 1.

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
        if config.normalise not in NORMALISATIONS:
            raise UserError(f"features.normalise={config.normalise!r}: expected one of {NORMALISATIONS}")
        self.window_samples = int(config.frame_length_ms * config.sample_rate / 1000)
        self.shift_samples = int(config.frame_shift_ms * config.sample_rate / 1000)
        with warnings.catch_warnings():  # lhotse warns of snip_edges, whose frame counts are handled here
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

    def frames(self, samples: Tensor) -> Tensor:
        """Return the number of whole windows in `samples` samples: [B] → [B]."""
        whole = torch.div(samples - self.window_samples, self.shift_samples, rounding_mode="floor") + 1
        return whole.clamp(min=0)

    @torch.no_grad()
    def forward(self, audio_BS: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the filter banks in float32, whatever autocast says.

        Args:
            audio_BS: [B, samples], right-padded with anything.
            lengths_B: [B] valid samples.

        Returns:
            [B, T, F] with zeros at padded frames, and [B] frames.
        """
        frames = self.frames(lengths_B)
        shortfall = self.window_samples - audio_BS.shape[1]
        if shortfall > 0:
            audio_BS = nn.functional.pad(audio_BS, (0, shortfall))
        with torch.autocast(audio_BS.device.type, enabled=False):
            features = self.layer(zero_padding(audio_BS.float(), lengths_B))
        return zero_padding(features, frames), frames


class Normalisation(nn.Module):
    """Mean–variance normalisation per utterance, or with the corpus statistics of the training set.

    Args:
        kind: `utterance`, `corpus` or `none`.
        mel_bins: F.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, kind: str, mel_bins: int) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("mean", torch.zeros(mel_bins))
        self.register_buffer("std", torch.ones(mel_bins))

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Normalise [B, T, F]; padded frames stay zero."""
        if self.kind == "none":
            return features
        if self.kind == "corpus":
            return zero_padding((features - self.mean) / self.std, lengths)
        keep = keep_mask(lengths, features.shape[1]).unsqueeze(-1)
        count = lengths.clamp(min=1).view(-1, 1, 1)
        mean = features.sum(dim=1, keepdim=True) / count
        centred = torch.where(keep, features - mean, 0.0)
        std = (centred.square().sum(dim=1, keepdim=True) / count).sqrt()
        return centred / (std + 1e-5)


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
            raise UserError("corpus statistics: the training set has no frame to take them from")
        mean = self.sum / self.count
        variance = (self.squares / self.count - mean.square()).clamp(min=1e-10)
        normalisation.mean.copy_(mean)
        normalisation.std.copy_(variance.sqrt())
