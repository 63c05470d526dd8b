"""Greedy search: the labels of the best output sequence, without lexicon or language model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from asr.lengths import keep_mask
from asr.losses.ctc import BLANK
from asr.losses.topology import split_outputs
from asr.search.decoder import Search
from asr.search.path import TokenPath


@dataclass(frozen=True)
class GreedySearch(Search):
    """`greedy_search` for a label topology."""

    topology: str = "ctc"

    @property
    def reentrant(self) -> bool:
        """True, because the search has no state."""
        return True

    def __call__(self, log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
        """Search a batch."""
        return greedy_search(log_probs_BTV, lengths_B, self.topology)


def greedy_search(log_probs_BTV: Tensor, lengths_B: Tensor, topology: str = "ctc") -> list[TokenPath]:
    """Return the labels of the most probable output sequence.

    For `ctc`, this is the best output of every frame, with repetitions merged and blanks removed (Graves et
    al., *Connectionist Temporal Classification*, 2006, eq. 4). For `hmm`, where a label's later output may
    only follow the same label, it is a Viterbi search over a loop of all labels.

    Args:
        log_probs_BTV: [B, T, V] log-probabilities of the outputs, blank at index 0; padded frames don't
            affect the result.
        lengths_B: [B] valid frames.
        topology: topology of the labels.

    Returns:
        Per utterance the label ids, each with its first frame and the frame after its last.

    Example:
        >>> probs = torch.tensor([[[0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]]])
        >>> greedy_search(probs.log(), torch.tensor([4]))[0].frames
        [0, 3]
    """
    if topology == "hmm":
        return _viterbi_search(log_probs_BTV, lengths_B)
    best_BT = log_probs_BTV.argmax(dim=-1)
    keep_BT = keep_mask(lengths_B, best_BT.shape[1])
    previous_BT = torch.nn.functional.pad(best_BT, (1, 0), value=-1)[:, :-1]
    changes_BT = best_BT != previous_BT
    starts_BT = changes_BT & (best_BT != BLANK) & keep_BT
    # Every frame belongs to a run of equal labels. An utterance's first frame always starts one, so no run
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
        labels = slice(begin, begin + count)
        paths.append(TokenPath(ids[labels], frames[labels], ends[labels]))
        begin += count
    return paths


def _viterbi_search(log_probs_BTO: Tensor, lengths_B: Tensor) -> list[TokenPath]:
    first_TBV, later_TBV = (x.transpose(0, 1) for x in split_outputs(log_probs_BTO.detach().cpu(), "hmm"))
    T, B, V = first_TBV.shape
    score_BV = torch.full((B, V), -torch.inf)  # best path that ends in a label, or in silence
    score_BV[:, BLANK] = 0.0
    stays_TBV = torch.empty(T, B, V, dtype=torch.bool)
    before_TB = torch.empty(T, B, dtype=torch.long)  # label before a label that starts in this frame
    ends_TB = torch.empty(T, B, dtype=torch.long)  # label in which the best path ends
    for t in range(T):
        best_B, before_TB[t] = score_BV.max(dim=1)
        started_BV, stayed_BV = first_TBV[t] + best_B[:, None], later_TBV[t] + score_BV
        stays_TBV[t] = stayed_BV >= started_BV
        score_BV = torch.maximum(started_BV, stayed_BV)
        ends_TB[t] = score_BV.argmax(dim=1)
    paths = []
    for b, length in enumerate(lengths_B.tolist()):
        stays, before = stays_TBV[:length, b].numpy(), before_TB[:length, b].tolist()
        label = int(ends_TB[length - 1, b]) if length else BLANK
        ids, frames, ends, end = [], [], [], length
        for t in reversed(range(length)):
            if stays[t, label]:
                continue
            if label != BLANK:
                ids.append(label)
                frames.append(t)
                ends.append(end)
            label, end = before[t], t
        paths.append(TokenPath(ids[::-1], frames[::-1], ends[::-1]))
    return paths
