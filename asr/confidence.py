"""How certain a recogniser is of a whole recording, and what is less certain than its development set."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from asr.ctc import BLANK

USUAL_SHARE = 0.95  # of the development audio is at least as certain as the limit
UNKNOWN_LIMIT = 0.7  # where a model doesn't know its development set


def certainty(log_probs_TV: Tensor) -> float:
    """Return how certain a recogniser is of the labels that it found, 0 … 1.

    Of the probability that frames give to any label, it is the share that goes to each frame's best one:
    Σ_t max_v p_t(v) / Σ_t (1 − p_t(blank)), v ≠ blank. Frames of silence weigh nothing; frames that may
    be one of several labels pull it down. It is 0 where there is nothing but blank.

    Args:
        log_probs_TV: [T, V] log-probabilities of one utterance, without padded frames.

    Example:
        >>> import torch
        >>> round(certainty(torch.tensor([[0.98, 0.01, 0.01], [0.0, 0.9, 0.1]]).log()), 4)
        0.8922
    """
    probs_TV = log_probs_TV.exp()
    labels_TV = probs_TV[:, BLANK + 1 :]
    mass = float(labels_TV.sum())
    found = bool((log_probs_TV.argmax(dim=-1) != BLANK).any())
    return float(labels_TV.amax(dim=-1).sum()) / mass if found else 0.0


def usual_limit(certainties: Sequence[float], frames: Sequence[int]) -> float:
    """Return the certainty that nearly all audio of a development set reaches.

    Utterances count by their frames: those of a word or two vary most, and would lower the limit for all.
    """
    if not certainties:
        return 0.0
    order = np.argsort(certainties)
    share = np.cumsum(np.asarray(frames)[order]) / max(1, sum(frames))
    return float(certainties[order[int(np.searchsorted(share, 1 - USUAL_SHARE))]])
