"""Frames of a label sequence that a search found without them."""

import torch
from torch import Tensor
from torchaudio.functional import forced_align, merge_tokens

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
    alignment_1T, scores_1T = forced_align(log_probs_TV[None], torch.tensor([ids]), blank=BLANK)
    spans = merge_tokens(alignment_1T[0], scores_1T[0], blank=BLANK)
    frames, ends = [span.start for span in spans], [span.end for span in spans]
    return TokenPath(ids, frames, ends, score=score)
