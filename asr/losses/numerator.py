"""The numerator: the log-sum over all output sequences that spell the target, in log space.

While outputs are still wrong, the states of a target differ by more than a number format can represent;
scaled sums, as in the denominator, would lose the path that matters.
"""

import torch
from torch import Tensor

from asr.losses.ctc import BLANK
from asr.losses.topology import joined_outputs, split_outputs


def numerator(
    outputs_BTO: Tensor,
    lengths_B: Tensor,
    tokens_BU: Tensor,
    token_lengths_B: Tensor,
    topology: str,
    occupancies: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the log-sum of each utterance and the occupancies of the outputs.

    The states are those of Graves et al. 2006, section 4.1, in two groups: `between`, on output 0 after u
    labels, and `within` label u. For `ctc` and log-probabilities, the log-sum is the negative CTC loss.

    Args:
        outputs_BTO: [B, T, O] log-scores, finite also in the padding.
        lengths_B: [B] valid frames.
        tokens_BU: [B, U] targets, right-padded with labels of the vocabulary.
        token_lengths_B: [B] valid targets.
        topology: `ctc` or `hmm`.
        occupancies: whether to compute the occupancies.

    Returns:
        [B] float64 log-sums, −∞ if the target needs more frames; and [B, T, O] float64 occupancies, zero if
        the log-sum is −∞, or None.
    """
    first_TBV, later_TBV = (x.transpose(0, 1).double() for x in split_outputs(outputs_BTO, topology))
    T, B, _ = first_TBV.shape
    U = tokens_BU.shape[1]
    tokens_TBU = tokens_BU.expand(T, B, U)
    first_TBU, later_TBU = first_TBV.gather(2, tokens_TBU), later_TBV.gather(2, tokens_TBU)
    blank_TB1 = first_TBV[:, :, BLANK : BLANK + 1]
    # Labels that may follow their left neighbour only after a blank.
    blocked_BU = torch.zeros_like(tokens_BU, dtype=torch.bool)
    if topology == "ctc":
        blocked_BU[:, 1:] = tokens_BU[:, 1:] == tokens_BU[:, :-1]

    impossible = -torch.inf
    between = first_TBV.new_full((T + 1, B, U + 1), impossible)  # after u labels, on output 0
    within = first_TBV.new_full((T + 1, B, U + 1), impossible)  # column 0 is never reached
    between[0, :, 0] = 0.0
    for t in range(T):
        either_BU = torch.logaddexp(between[t], within[t])
        from_BU = torch.where(blocked_BU, between[t, :, :-1], either_BU[:, :-1])
        torch.add(either_BU, blank_TB1[t], out=between[t + 1])
        within[t + 1, :, 1:] = torch.logaddexp(from_BU + first_TBU[t], within[t, :, 1:] + later_TBU[t])
    own_B = torch.arange(B, device=lengths_B.device)
    log_sum_B = torch.logaddexp(
        between[lengths_B, own_B, token_lengths_B], within[lengths_B, own_B, token_lengths_B]
    )
    if not occupancies:
        return log_sum_B, None

    # The backward pass starts in the final states, in the frame in which the utterance ends.
    last_BU = torch.arange(U + 1, device=lengths_B.device) == token_lengths_B[:, None]
    frames_T = torch.arange(T + 1, device=lengths_B.device)
    goal_TBU = ((frames_T[:, None] == lengths_B)[:, :, None] & last_BU).double().log()
    after_between, after_within = goal_TBU.clone(), goal_TBU
    for t in reversed(range(T)):
        blank_BU = after_between[t + 1] + blank_TB1[t]
        start_BU = after_within[t + 1, :, 1:] + first_TBU[t]
        stay_BU = after_within[t + 1, :, 1:] + later_TBU[t]
        for after_BU, next_BU in (
            (after_between[t], start_BU),
            (after_within[t], start_BU.masked_fill(blocked_BU, impossible)),
        ):
            torch.logaddexp(after_BU, blank_BU, out=after_BU)
            torch.logaddexp(after_BU[:, :-1], next_BU, out=after_BU[:, :-1])
        torch.logaddexp(after_within[t, :, 1:], stay_BU, out=after_within[t, :, 1:])

    possible_B1 = log_sum_B.isfinite()[:, None]
    total_B1 = log_sum_B[:, None].masked_fill(~possible_B1, 0.0)
    share_TBU = (within[1:, :, 1:] + after_within[1:, :, 1:] - total_B1).exp()
    stayed_TBU = (within[:-1, :, 1:] + later_TBU + after_within[1:, :, 1:] - total_B1).exp()
    blank_TB = (between[1:] + after_between[1:] - total_B1).exp().sum(dim=2)
    first_TBV, later_TBV = torch.zeros_like(first_TBV), torch.zeros_like(first_TBV)
    first_TBV.scatter_add_(2, tokens_TBU, (share_TBU - stayed_TBU).clamp(min=0.0))
    later_TBV.scatter_add_(2, tokens_TBU, stayed_TBU)
    first_TBV[:, :, BLANK] = blank_TB
    later_TBV[:, :, BLANK] = 0.0
    occupancy_TBO = joined_outputs(first_TBV, later_TBV, topology) * possible_B1
    return log_sum_B, occupancy_TBO.transpose(0, 1)
