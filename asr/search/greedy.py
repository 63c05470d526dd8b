"""Greedy CTC search: the best label of every frame, with repetitions merged and blanks removed."""

import torch
from torch import Tensor

from asr.lengths import keep_mask
from asr.losses.ctc import BLANK
from asr.search.path import TokenPath


def greedy_search(log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
    """Return the labels of the most probable frame sequence.

    Graves et al., *Connectionist Temporal Classification*, 2006, eq. 4 (best path decoding).

    Args:
        log_probs_BTV: [B, T, V] log-probabilities, blank at index 0; padded frames don't affect the result.
        lengths_B: [B] valid frames.

    Returns:
        Per utterance the label ids, and the frames in which each starts and before which it ends.

    Example:
        >>> probs = torch.tensor([[[0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]]])
        >>> greedy_search(probs.log(), torch.tensor([4]))[0].frames
        [0, 3]
    """
    best_BT = log_probs_BTV.argmax(dim=-1)
    keep_BT = keep_mask(lengths_B, best_BT.shape[1])
    previous_BT = torch.nn.functional.pad(best_BT, (1, 0), value=-1)[:, :-1]
    changes_BT = best_BT != previous_BT
    starts_BT = changes_BT & (best_BT != BLANK) & keep_BT
    # Every frame belongs to a run of equal labels. The first frame of an utterance always changes, so no run
    # spans two utterances.
    run_BT = (changes_BT.flatten().cumsum(0) - 1).view_as(best_BT)

    utterance, frame = starts_BT.nonzero(as_tuple=True)
    ids = best_BT[utterance, frame].tolist()
    frames = frame.tolist()
    # A run may continue into the padding; a label may not.
    run_lengths = run_BT.flatten().bincount()
    ends = torch.minimum(frame + run_lengths[run_BT[utterance, frame]], lengths_B[utterance]).tolist()
    paths = []
    begin = 0
    for count in starts_BT.sum(dim=1).tolist():
        own = slice(begin, begin + count)
        paths.append(TokenPath(ids[own], frames[own], ends[own]))
        begin += count
    return paths
