"""SpecAugment, with random numbers from the caller's random state only."""

from dataclasses import replace

import torch
from torch import Tensor

from asr.lengths import keep_mask
from asr.model.options import AugmentConfig

LARGEST_SHARE = 0.5  # maximum fraction of an utterance's frames that a time mask covers


def with_more_time_masks(config: AugmentConfig) -> AugmentConfig:
    """Return options with 2.5 times as many time masks, as in CR-CTC (Yao et al. 2024)."""
    every = config.time_mask_every
    return replace(config, time_mask_every=max(1, round(every / 2.5)) if every else 0)


def spec_augment(
    features: Tensor, lengths: Tensor, config: AugmentConfig, masked_frame: Tensor | None = None
) -> Tensor:
    """Mask bins with zeros (the mean of normalised features) and frames with zeros or a vector.

    This is SpecAugment (Park et al. 2019) without time warping. The number and positions of time masks depend
    on the length of the utterance, not on padding; no mask covers more than half of it (the paper's p), so
    that part of a short word remains.

    Args:
        features: [B, T, F], normalised.
        lengths: [B] valid frames.
        config: number and sizes of the masks.
        masked_frame: vector [F] that replaces masked frames; None: zeros.

    Returns:
        [B, T, F].
    """
    batch, frames, bins = features.shape
    device = features.device
    hidden_bins = _intervals(
        torch.full((batch, config.frequency_masks), bins, device=device),
        torch.full((batch, 1), config.frequency_mask_bins, device=device),
        bins,
    )
    features = features.masked_fill(hidden_bins.unsqueeze(1), 0.0)
    if config.time_mask_every <= 0:
        return features
    masks = (lengths + config.time_mask_every - 1) // config.time_mask_every
    size = frames // config.time_mask_every + 1
    spans = torch.where(keep_mask(masks, size), lengths.unsqueeze(1), 0)
    widest = (LARGEST_SHARE * lengths).long().clamp(max=config.time_mask_frames)
    hidden_frames = _intervals(spans, widest.unsqueeze(1), frames)
    if masked_frame is None:
        return features.masked_fill(hidden_frames.unsqueeze(2), 0.0)
    masked = masked_frame.masked_fill(hidden_bins.unsqueeze(1), 0.0).to(features.dtype)
    return torch.where(hidden_frames.unsqueeze(2), masked, features)


def _intervals(spans: Tensor, widest: Tensor, size: int) -> Tensor:
    """Draw one interval within 0 … span for each of `spans` [B, masks]; return their union [B, size].

    Args:
        spans: [B, masks] ends of the ranges for the intervals; 0: no interval.
        widest: [B, 1] maximum width of an interval.
        size: number of positions.
    """
    width = torch.minimum((torch.rand(spans.shape, device=spans.device) * (widest + 1)).floor(), widest)
    start = (torch.rand(spans.shape, device=spans.device) * (spans - width + 1).clamp(min=1)).floor()
    width = torch.where(spans > 0, width, 0)
    positions = torch.arange(size, device=spans.device)
    inside = (positions >= start.unsqueeze(-1)) & (positions < (start + width).unsqueeze(-1))
    return inside.any(dim=1)
