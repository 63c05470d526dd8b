"""Memory-efficient Viterbi alignment, for hour-long recordings.

The backtracking table of a Viterbi search has a cell per frame and state: 6.5 GB for an hour of speech. Here,
only one row per BLOCK_FRAMES frames is stored. Backtracking recomputes the blocks from last to first,
restricted to states near the path.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.losses.ctc import BLANK
from asr.losses.topology import split_outputs

BLOCK_FRAMES = 1024
Floats = NDArray[np.floating]


def best_path(log_probs_TV: Tensor, ids: Sequence[int], topology: str = "ctc") -> tuple[Tensor, float]:
    """Return the Viterbi path of a label sequence.

    The states are those of Graves et al. 2006, section 4.1: blank, label 1, blank, …, label U, blank. Time is
    O(T·U), memory O(T·V + U·T / BLOCK_FRAMES). Sums are in double precision.

    Args:
        log_probs_TV: [T, V] float32 or float64 log-probabilities of the outputs on the CPU, without
            gradients; T ≥ `frames_needed(ids, topology)`.
        ids: U labels without blanks; at least one.
        topology: topology of the labels.

    Returns:
        [T] state of each frame, 2u + 1 for label u and even for blanks, and the log-probability of the path;
        −∞ if the labels have probability zero.

    Example:
        >>> probs = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
        >>> path, log_prob = best_path(probs.log(), [1, 1])
        >>> path.tolist(), round(log_prob, 3)
        ([1, 1, 2, 3], -1.196)
    """
    T, S = len(log_probs_TV), 2 * len(ids) + 1
    label_S = np.full(S, BLANK)
    label_S[1::2] = ids
    # Transitions from a label to the next without a blank; CTC allows them if the two differ.
    skip_S = np.full(S, -np.inf)
    skip_S[3::2][(label_S[3::2] != label_S[1:-2:2]) | (topology == "hmm")] = 0.0
    first_TV, later_TV = (x.numpy() for x in split_outputs(log_probs_TV, topology))

    # NumPy's calls have a fifth of PyTorch's overhead, which dominates at the size of an utterance.
    before_S = np.full(S, -np.inf)
    before_S[0] = 0.0  # as if preceded by a blank
    kept = []
    for start in range(0, T, BLOCK_FRAMES):
        kept.append(before_S)
        if start + BLOCK_FRAMES >= T:
            break  # the last block is computed only by its trace
        for t in range(start, start + BLOCK_FRAMES):
            # States outside this range can't be reached yet, or can't reach the end any more.
            low, high = max(0, S - 2 * (T - t)), min(S, 2 * (t + 1))
            label = label_S[low:high]
            stay, step, skip = _choices(before_S, skip_S, first_TV[t, label], later_TV[t, label], low, high)
            before_S = np.full(S, -np.inf)
            before_S[low:high] = np.maximum(np.maximum(stay, step), skip)

    state, log_prob = S, 0.0
    path: list[Tensor] = []
    for start in reversed(range(0, T, BLOCK_FRAMES)):
        block = slice(start, start + BLOCK_FRAMES)
        states, best = _trace(first_TV[block], later_TV[block], kept.pop(), state, label_S, skip_S)
        if not path:
            log_prob = best
        path.append(torch.tensor(states[1:]))
        state = states[0]
    return torch.cat(path[::-1]), log_prob


def label_spans(state_T: Tensor) -> list[tuple[int, int]]:
    """Return the first frame of each label of a path, and the frame after its last one."""
    states, counts = state_T.unique_consecutive(return_counts=True)
    ends = counts.cumsum(dim=0).tolist()
    spans = zip(states.tolist(), counts.tolist(), ends, strict=True)
    return [(end - count, end) for state, count, end in spans if state % 2]


def _trace(
    first_TV: Floats, later_TV: Floats, before_S: Floats, last: int, label_S: NDArray[np.int_], skip_S: Floats
) -> tuple[list[int], float]:
    """Return the states of a block, preceded by the state before it, and the log-probability up to its end.

    Args:
        first_TV, later_TV: log-probabilities with which labels start and continue in this block.
        before_S: log-probabilities of the states before the block.
        last: state in the block's last frame; S: the better of the two that end the sequence.
        label_S: label of each state.
        skip_S: 0 for states that may follow the one two before them, else −∞.
    """
    T, S = len(first_TV), len(label_S)
    low, high = max(0, min(last, S - 2) - 2 * T), min(last + 1, S)
    before, label, skips = before_S[low:high], label_S[low:high], skip_S[low:high]
    back = np.zeros((T, high - low), dtype=np.uint8)
    for t in range(T):
        stay, step, skip = _choices(before, skips, first_TV[t, label], later_TV[t, label], 0, high - low)
        # Staying wins ties, then the shorter step.
        before = np.maximum(stay, step)
        back[t] = step > stay
        back[t, skip > before] = 2
        before = np.maximum(before, skip)
    if last == S:
        last = S - 2 + int(before[-2:].argmax())
    states = [last]
    for row in reversed(back):
        states.append(states[-1] - int(row[states[-1] - low]))
    return states[::-1], float(before[last - low])


def _choices(
    before_S: Floats, skip_S: Floats, first_S: Floats, later_S: Floats, low: int, high: int
) -> tuple[Floats, Floats, Floats]:
    """Return the log-probabilities of states `low` … `high` − 1 after staying and after 1 and 2 steps."""
    x = before_S[max(0, low - 2) : high]
    if low < 2:
        x = np.concatenate((np.full(2 - low, -np.inf), x))
    return x[2:] + later_S, x[1:-1] + first_S, x[:-2] + skip_S[low:high] + first_S
