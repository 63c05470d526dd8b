"""Confidence of recognised labels, from the entropy of the posteriors."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from asr.search.path import TokenPath

ALPHA = 1 / 3  # order of the Tsallis entropy; lower values give unlikely labels more weight


def frame_confidences(log_probs_TV: Tensor) -> Tensor:
    """Return the confidence of each frame: 1 for a one-hot distribution, 0 for a uniform one.

    Linearly normalised Tsallis entropy, as in NeMo (Laptev and Ginsburg, *Fast Entropy-Based Methods of
    Word-Level Confidence Estimation for End-To-End Automatic Speech Recognition*, 2022):

        1 − H / H_max,  H = (Σ p^α − 1) / (1 − α),  H_max = (V^(1−α) − 1) / (1 − α)

    Args:
        log_probs_TV: […, T, V] log-probabilities.

    Returns:
        […, T] values in 0 … 1.

    Example:
        >>> frame_confidences(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).log()).tolist()
        [1.0, 0.0]
    """
    powers_T = (ALPHA * log_probs_TV.float()).exp().sum(dim=-1)
    return (1 - (powers_T - 1) / (log_probs_TV.shape[-1] ** (1 - ALPHA) - 1)).clamp(0.0, 1.0)


def with_confidences(paths: Sequence[TokenPath], log_probs_BTV: Tensor) -> list[TokenPath]:
    """Return the paths with the confidence of each label, averaged over its frames.

    Args:
        paths: [B] labels of the utterances with their first and end frames.
        log_probs_BTV: [B, T, V] log-probabilities.
    """
    confidences_BT = frame_confidences(log_probs_BTV).double()
    sums = torch.nn.functional.pad(confidences_BT.cumsum(dim=1), (1, 0)).cpu().numpy()
    rated = []
    for path, sums_T in zip(paths, sums, strict=True):
        first, end = np.array(path.frames, dtype=np.int64), np.array(path.ends, dtype=np.int64)
        rated.append(replace(path, confidences=((sums_T[end] - sums_T[first]) / (end - first)).tolist()))
    return rated
