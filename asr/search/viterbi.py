"""Viterbi alignment in little memory, for hour-long recordings.

The backtracking table of a Viterbi search has a cell per frame and state: 6.5 GB for an hour of speech. Here,
only one row per BLOCK_FRAMES frames is stored. Backtracking recomputes the blocks from last to first,
restricted to the states near the path.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from asr.losses.ctc import BLANK
from asr.losses.topology import split_outputs

BLOCK_FRAMES = 1024


def best_path(log_probs_TV: Tensor, ids: Sequence[int], topology: str = "ctc") -> tuple[Tensor, float]:
    """Return the Viterbi path of a label sequence.

    The states are those of Graves et al. 2006, section 4.1: blank, label 1, blank, …, label U, blank. Time is
    O(T·U), memory O(T·V + U·T / BLOCK_FRAMES). Sums are in double precision.

    Args:
        log_probs_TV: [T, V] log-probabilities of the outputs on the CPU, T ≥ `frames_needed(ids, topology)`.
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
    label_S = torch.full((S,), BLANK)
    label_S[1::2] = torch.tensor(ids)
    # Transitions from a label to the next without a blank; CTC allows them if the two differ.
    skip_S = torch.full((S,), -torch.inf, dtype=torch.double)
    skip_S[3::2][(label_S[3::2] != label_S[1:-2:2]) | (topology == "hmm")] = 0.0
    emitted_TVK = torch.stack(split_outputs(log_probs_TV, topology), dim=2)  # K: starting, going on

    before_S = torch.full((S,), -torch.inf, dtype=torch.double)
    before_S[0] = 0.0  # as if preceded by a blank
    kept = []
    for start in range(0, T, BLOCK_FRAMES):
        kept.append(before_S)
        for t, emitted_VK in enumerate(emitted_TVK[start : start + BLOCK_FRAMES].double(), start=start):
            # States outside can't be reached yet or can't reach the end any more.
            low, high = max(0, S - 2 * (T - t)), min(S, 2 * (t + 1))
            choices = _choices(before_S, skip_S, emitted_VK.index_select(0, label_S[low:high]), low, high)
            before_S = torch.full((S,), -torch.inf, dtype=torch.double)
            torch.amax(choices, dim=0, out=before_S[low:high])

    state = S - 2 + int(before_S[-2:].argmax())
    log_prob = float(before_S[state])
    path: list[Tensor] = []
    for start in reversed(range(0, T, BLOCK_FRAMES)):
        states = _trace(emitted_TVK[start : start + BLOCK_FRAMES], kept.pop(), state, label_S, skip_S)
        path.append(torch.tensor(states[1:]))
        state = states[0]
    return torch.cat(path[::-1]), log_prob


def label_spans(state_T: Tensor) -> list[tuple[int, int]]:
    """Return the first frame of each label of a path, and the frame after its last one."""
    states, counts = state_T.unique_consecutive(return_counts=True)
    ends = counts.cumsum(dim=0).tolist()
    spans = zip(states.tolist(), counts.tolist(), ends, strict=True)
    return [(end - count, end) for state, count, end in spans if state % 2]


def _trace(emitted_TVK: Tensor, before_S: Tensor, last: int, label_S: Tensor, skip_S: Tensor) -> list[int]:
    """Return the states of a block that ends in state `last`, preceded by the state before the block."""
    low = max(0, last - 2 * len(emitted_TVK))
    before, label, skips = (x[low : last + 1] for x in (before_S, label_S, skip_S))
    back = torch.empty(len(emitted_TVK), len(before), dtype=torch.uint8)
    for t, emitted_VK in enumerate(emitted_TVK.double()):
        before, back[t] = _choices(before, skips, emitted_VK[label], 0, len(before)).max(dim=0)
    states = [last]
    for row in reversed(back):
        states.append(states[-1] - int(row[states[-1] - low]))
    return states[::-1]


def _choices(before_S: Tensor, skip_S: Tensor, emitted_SK: Tensor, low: int, high: int) -> Tensor:
    """Return the log-probabilities of states `low` … `high` − 1 after staying and after 1 and 2 steps."""
    x = torch.nn.functional.pad(before_S[max(0, low - 2) : high], (max(0, 2 - low), 0), value=-torch.inf)
    first, later = emitted_SK.unbind(dim=1)
    return torch.stack((x[2:] + later, x[1:-1] + first, x[:-2] + skip_S[low:high] + first))
