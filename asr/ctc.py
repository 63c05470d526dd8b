"""The CTC head, the CTC loss, and the number of frames that a target needs."""

import itertools
import math

from torch import Tensor, nn

BLANK = 0
BLANK_AT_START = 0.9  # initial probability of the blank


class CTCHead(nn.Module):
    """Linear projection to the vocabulary with log-softmax in float32.

    The initial bias makes the blank likely. Starting from equal probabilities, training at ten frames per
    label can get stuck at label sequences without blanks, at the error rate of chance. Starting from the
    blank, it has always escaped, and sooner.

    Args:
        size: M.
        vocabulary: V, including the blank (index 0).
    """

    def __init__(self, size: int, vocabulary: int) -> None:
        super().__init__()
        self.projection = nn.Linear(size, vocabulary)
        nn.init.zeros_(self.projection.bias)
        odds = BLANK_AT_START / (1 - BLANK_AT_START)
        nn.init.constant_(self.projection.bias[BLANK], math.log(odds * max(1, vocabulary - 1)))

    def forward(self, states: Tensor) -> Tensor:
        """Map [B, T, M] to log-probabilities [B, T, V], float32."""
        return self.projection(states).float().log_softmax(dim=-1)


def ctc_loss(log_probs_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor) -> Tensor:
    """Return the unnormalised CTC loss of each utterance (Graves et al. 2006).

    The loss is infinite where the target needs more frames than the utterance has (see `frames_needed`).

    Args:
        log_probs_BTV: [B, T, V] float32 log-probabilities.
        lengths_B: [B] valid frames.
        tokens_BU: [B, U] targets, right-padded.
        token_lengths_B: [B] valid targets.

    Returns:
        [B] negative log-likelihoods in nats.
    """
    return nn.functional.ctc_loss(
        log_probs_BTV.transpose(0, 1),
        tokens_BU,
        lengths_B,
        token_lengths_B,
        blank=BLANK,
        reduction="none",
        zero_infinity=False,
    )


def frames_needed(tokens: list[int]) -> int:
    """Return the smallest number of frames for `tokens`: one per token, and a blank between repeats.

    Example:
        >>> frames_needed([5, 5, 7])
        4
    """
    repeats = sum(a == b for a, b in itertools.pairwise(tokens))
    return len(tokens) + repeats
