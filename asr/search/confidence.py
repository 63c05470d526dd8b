"""Confidence of recognised labels, computed from the entropy of the posteriors."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from asr.search.path import TokenPath

ALPHA = 1 / 3  # order of the Tsallis entropy; lower values give unlikely labels more weight


def frame_confidences(log_probs_TV: Tensor) -> Tensor:
    """Return the confidence of each frame: 1 for a one-hot distribution, 0 for a uniform one.

    Tsallis entropy with exponential normalisation, as in NeMo (Laptev and Ginsburg, *Fast Entropy-Based
    Methods of Word-Level Confidence Estimation for End-To-End Automatic Speech Recognition*, 2022):

        H = (Σ p^α − 1) / (1 − α)        (exp(−H) − exp(−H_max)) / (1 − exp(−H_max))

    Args:
        log_probs_TV: [T, V] log-probabilities.

    Returns:
        [T] values in 0 … 1.

    Example:
        >>> frame_confidences(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).log()).tolist()
        [1.0, 0.0]
    """
    V = log_probs_TV.shape[-1]
    entropy_T = ((ALPHA * log_probs_TV.float()).exp().sum(dim=-1) - 1) / (1 - ALPHA)
    lowest = math.exp(-(V ** (1 - ALPHA) - 1) / (1 - ALPHA))
    return (((-entropy_T).exp() - lowest) / (1 - lowest)).clamp(0.0, 1.0)


def add_confidences(path: TokenPath, log_probs_TV: Tensor) -> TokenPath:
    """Return the path with the confidence of each label, averaged over its frames.

    Args:
        path: labels of an utterance with their first and end frames.
        log_probs_TV: [T, V] log-probabilities of the utterance.
    """
    if not path.ids:
        return path
    sums = torch.nn.functional.pad(frame_confidences(log_probs_TV).double().cumsum(dim=0), (1, 0)).cpu()
    first, end = torch.tensor(path.frames), torch.tensor(path.ends)
    return replace(path, confidences=((sums[end] - sums[first]) / (end - first)).tolist())
