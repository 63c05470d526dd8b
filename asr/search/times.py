"""Frames of a label sequence that a search found without them."""

import torch
from torch import Tensor
from torchaudio.functional import forced_align

from asr.losses.ctc import BLANK
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
    alignment, _ = forced_align(log_probs_TV[None], torch.tensor([ids]), blank=BLANK)
    frames: list[int] = []
    ends: list[int] = []
    previous = BLANK
    for frame, label in enumerate(alignment[0].tolist()):
        if label != BLANK and label != previous:
            frames.append(frame)
            ends.append(frame + 1)
        elif label != BLANK:
            ends[-1] = frame + 1
        previous = label
    return TokenPath(ids, frames, ends, score=score)
