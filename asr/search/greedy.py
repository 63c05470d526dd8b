"""Greedy CTC search: the best label of every frame, with repetitions merged and blanks removed."""

import torch
from torch import Tensor

from asr.ctc import BLANK
from asr.lengths import keep_mask
from asr.search.path import TokenPath


def greedy_search(log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
    """Return the labels of the most probable frame sequence.

    Graves et al., *Connectionist Temporal Classification*, 2006, eq. 4 (best path decoding).

    Args:
        log_probs_BTV: [B, T, V] log-probabilities, blank at index 0; padded frames don't affect the result.
        lengths_B: [B] valid frames.

    Returns:
        Per utterance the label ids, the frames in which each starts and before which it ends, and its
        confidence: its highest probability among the frames that it spans.

    Example:
        >>> probs = torch.tensor([[[0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]]])
        >>> greedy_search(probs.log(), torch.tensor([4]))[0].frames
        [0, 3]
    """
    best_log_prob_BT, best_BT = log_probs_BTV.max(dim=-1)
    keep_BT = keep_mask(lengths_B, best_BT.shape[1])
    previous_BT = torch.nn.functional.pad(best_BT, (1, 0), value=-1)[:, :-1]
    changes_BT = best_BT != previous_BT
    starts_BT = changes_BT & (best_BT != BLANK) & keep_BT
    # Every frame belongs to a run of equal labels; a run's confidence is that of its best frame.
    # The first frame of an utterance always starts a run, so no run spans two utterances.
    run_BT = (changes_BT.flatten().cumsum(0) - 1).view_as(best_BT)
    log_probs = best_log_prob_BT.masked_fill(~keep_BT, -torch.inf).flatten().float()
    best_of_run = log_probs.new_full((log_probs.numel(),), -torch.inf)
    best_of_run.scatter_reduce_(0, run_BT.flatten(), log_probs, "amax")

    utterance, frame = starts_BT.nonzero(as_tuple=True)
    ids = best_BT[utterance, frame].tolist()
    confidences = best_of_run[run_BT[utterance, frame]].exp().tolist()
    frames = frame.tolist()
    # A run may extend into the padding; a label may not.
    run_lengths = run_BT.flatten().bincount()
    ends = torch.minimum(frame + run_lengths[run_BT[utterance, frame]], lengths_B[utterance]).tolist()
    paths = []
    begin = 0
    for count in starts_BT.sum(dim=1).tolist():
        own = slice(begin, begin + count)
        paths.append(TokenPath(ids[own], frames[own], confidences[own], ends=ends[own]))
        begin += count
    return paths
