"""Frames of a label sequence that a search found without them."""

import torch
from torch import Tensor
from torchaudio.functional import forced_align, merge_tokens

from asr.losses.ctc import BLANK
from asr.search.path import TokenPath
from asr.search.viterbi import best_path, label_spans


def align_labels(
    log_probs_TV: Tensor, ids: list[int], score: float | None = None, topology: str = "ctc"
) -> TokenPath:
    """Return labels with the frames of their Viterbi alignment.

    Args:
        log_probs_TV: [T, V] log-probabilities of one utterance, on the CPU; T is at least
            `frames_needed(ids, topology)`.
        ids: labels without blanks.
        score: score of the sequence.
        topology: topology of the labels.
    """
    if not ids:
        return TokenPath([], [], [], score=score)
    if topology == "hmm":
        starts_ends = label_spans(best_path(log_probs_TV, ids, topology)[0])
        return TokenPath(
            ids, [start for start, _ in starts_ends], [end for _, end in starts_ends], score=score
        )
    alignment_1T, scores_1T = forced_align(log_probs_TV[None], torch.tensor([ids]), blank=BLANK)
    spans = merge_tokens(alignment_1T[0], scores_1T[0], blank=BLANK)
    frames, ends = [span.start for span in spans], [span.end for span in spans]
    return TokenPath(ids, frames, ends, score=score)
