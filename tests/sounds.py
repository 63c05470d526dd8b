"""Synthetic sounds: noise with the rhythm of speech, and recordings in which mel bins hardly change."""

import soxr
import torch


def speech_like(samples: int, seed: int = 0) -> torch.Tensor:
    """Return noise that swells and fades, [samples]."""
    random = torch.Generator().manual_seed(seed)
    noise = torch.randn(samples, generator=random)
    return 0.1 * noise * torch.sin(torch.arange(samples) / 2000).abs()


def odd_sounds(seconds: float) -> dict[str, torch.Tensor]:
    """Return recordings at 16 kHz in which some mel bins, or all, hardly change, by their names."""
    telephone = speech_like(round(8000 * seconds)).numpy()
    samples = round(16000 * seconds)
    return {
        "narrow band": torch.from_numpy(soxr.resample(telephone, 8000, 16000)),
        "digital silence": torch.zeros(samples),
        "constant offset": torch.full((samples,), 0.3),
        "clipped": (30 * speech_like(samples)).clamp(-1, 1),
    }
