"""How certain a recogniser is of a whole recording."""

from torch import Tensor

from asr.search.path import TokenPath

MIN_CONFIDENCE = 0.5


def certainty(log_probs_TV: Tensor, path: TokenPath) -> float:
    """Return how certain the labels of a recording are, 0 … 1.

    Args:
        log_probs_TV: [T, V] log-probabilities.
        path: what the search found.
    """
    if not path.ids:
        return 0.0
    return path.confidence
