"""Viterbi alignment with CTC in little memory, for hour-long recordings.

The backtracking table of a Viterbi search has a cell per frame and state: 6.5 GB for an hour of speech. Here,
only one row per BLOCK_FRAMES frames is stored. Backtracking recomputes the blocks from last to first,
restricted to the states near the path.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from asr.losses.ctc import BLANK

BLOCK_FRAMES = 1024


def best_path(log_probs_TV: Tensor, ids: Sequence[int]) -> tuple[Tensor, float]:
    """Return the Viterbi path of a label sequence.

    The states are those of Graves et al. 2006, section 4.1: blank, label 1, blank, …, label U, blank. Time is
    O(T·U), memory O(T·V + U·T / BLOCK_FRAMES). Sums are in double precision.

    Args:
        log_probs_TV: [T, V] log-probabilities on the CPU, T ≥ `frames_needed(ids)`.
        ids: U labels without blanks; at least one.

    Returns:
        [T] label of each frame, including blanks, and the log-probability of the path; −∞ if the labels have
        probability zero.

    Example:
        >>> probs = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
        >>> path, log_prob = best_path(probs.log(), [1, 1])
        >>> path.tolist(), round(log_prob, 3)
        ([1, 1, 0, 1], -1.196)
    """
    T, S = len(log_probs_TV), 2 * len(ids) + 1
    label_S = torch.full((S,), BLANK)
    label_S[1::2] = torch.tensor(ids)
    # Transitions from a label to the next without a blank, allowed if the two differ.
    skip_S = torch.full((S,), -torch.inf, dtype=torch.double)
    skip_S[3::2][label_S[3::2] != label_S[1:-2:2]] = 0.0

    before_S = torch.full((S,), -torch.inf, dtype=torch.double)
    before_S[0] = 0.0  # as if preceded by a blank
    kept = []
    for start in range(0, T, BLOCK_FRAMES):
        kept.append(before_S)
        for t, emitted_V in enumerate(log_probs_TV[start : start + BLOCK_FRAMES].double(), start=start):
            # States outside can't be reached yet or can't reach the end any more.
            low, high = max(0, S - 2 * (T - t)), min(S, 2 * (t + 1))
            stay, step, skip = _choices(before_S, skip_S, low, high)
            best = torch.maximum(torch.maximum(stay, step), skip)
            before_S = torch.full((S,), -torch.inf, dtype=torch.double)
            torch.add(best, emitted_V.index_select(0, label_S[low:high]), out=before_S[low:high])

    state = S - 2 + int(before_S[-2:].argmax())
    log_prob = float(before_S[state])
    path: list[Tensor] = []
    for start in reversed(range(0, T, BLOCK_FRAMES)):
        states = _trace(log_probs_TV[start : start + BLOCK_FRAMES], kept.pop(), state, label_S, skip_S)
        path.append(label_S[states[1:]])
        state = states[0]
    return torch.cat(path[::-1]), log_prob


def _trace(log_probs_TV: Tensor, before_S: Tensor, last: int, label_S: Tensor, skip_S: Tensor) -> list[int]:
    """Return the states of a block that ends in state `last`, preceded by the state before the block."""
    low = max(0, last - 2 * len(log_probs_TV))
    before, label, skips = (x[low : last + 1] for x in (before_S, label_S, skip_S))
    back = torch.empty(len(log_probs_TV), len(before), dtype=torch.uint8)
    for t, emitted_V in enumerate(log_probs_TV.double()):
        best, back[t] = torch.stack(_choices(before, skips, 0, len(before))).max(dim=0)
        before = best + emitted_V[label]
    states = [last]
    for row in reversed(back):
        states.append(states[-1] - int(row[states[-1] - low]))
    return states[::-1]


def _choices(before_S: Tensor, skip_S: Tensor, low: int, high: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probabilities of states `low` … `high` − 1 after staying, or after 1 or 2 steps."""
    x = torch.nn.functional.pad(before_S[max(0, low - 2) : high], (max(0, 2 - low), 0), value=-torch.inf)
    return x[2:], x[1:-1], x[:-2] + skip_S[low:high]
