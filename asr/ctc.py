"""The CTC head: log-probabilities over the vocabulary, the loss, and which targets can fit."""

import itertools
import math

from torch import Tensor, nn

BLANK = 0
BLANK_AT_START = 0.9  # probability of the blank in a new model


class CTCHead(nn.Module):
    """Linear projection to the vocabulary with log-softmax in float32.

    A new head says blank nearly everywhere. Of equal probabilities, training on ten frames a label may
    find its way to labels that last until the next, without blanks, and stay there at the error of
    knowing nothing; from the blank it always found out, and sooner.

    Args:
        size: M.
        vocabulary: V, blank (index 0) included.
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
    """Return the CTC loss of each utterance, not normalised (Graves et al. 2006).

    Infinity marks a target that cannot fit: it is the caller's business and never hidden.

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
    """Return the fewest frames that can emit `tokens`: one each, and a blank between repeats.

    Example:
        >>> frames_needed([5, 5, 7])
        4
    """
    repeats = sum(a == b for a, b in itertools.pairwise(tokens))
    return len(tokens) + repeats
