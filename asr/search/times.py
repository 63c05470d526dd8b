"""Frames and confidences of a label sequence that a search found without them."""

import torch
from torch import Tensor
from torchaudio.functional import forced_align

from asr.ctc import BLANK
from asr.search.path import TokenPath


def align_labels(log_probs_TV: Tensor, ids: list[int], score: float | None = None) -> TokenPath:
    """Return labels with the frames of their Viterbi alignment.

    Args:
        log_probs_TV: [T, V] log-probabilities of one utterance, on the CPU; T is at least the number of
            labels plus the number of blanks required between equal neighbours.
        ids: labels without blanks.
        score: score of the sequence.
    """
    if not ids:
        return TokenPath([], [], [], score=score)
    alignment, log_probs = forced_align(log_probs_TV[None], torch.tensor([ids]), blank=BLANK)
    labels = alignment[0].tolist()
    probabilities = log_probs[0].exp().tolist()
    frames: list[int] = []
    ends: list[int] = []
    confidences: list[float] = []
    previous = BLANK
    for frame, (label, probability) in enumerate(zip(labels, probabilities, strict=True)):
        if label != BLANK and label != previous:
            frames.append(frame)
            ends.append(frame + 1)
            confidences.append(probability)
        elif label != BLANK:
            ends[-1] = frame + 1
            confidences[-1] = max(confidences[-1], probability)
        previous = label
    return TokenPath(ids, frames, confidences, score=score, ends=ends)
