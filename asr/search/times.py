"""Frames of a label sequence that a search found without them."""

from torch import Tensor

from asr.search.forced_alignment import force_align
from asr.search.path import TokenPath


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
    spans = force_align(log_probs_TV, ids, topology=topology)
    return TokenPath(ids, [x.start_frame for x in spans], [x.end_frame for x in spans], score=score)
