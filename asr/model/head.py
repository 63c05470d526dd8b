"""The CTC head: encoder states to log-probabilities over the vocabulary."""

import math

from torch import Tensor, nn

from asr.losses.ctc import BLANK

INITIAL_BLANK_PROBABILITY = 0.9


class CTCHead(nn.Module):
    """Linear projection to the vocabulary with log-softmax in float32.

    A new head predicts blank nearly everywhere. From equal probabilities, training with ten frames per
    label can converge to labels that last until the next one, without blanks, and never improve.

    Args:
        size: model size M.
        vocabulary: vocabulary size V, blank (index 0) included.
    """

    def __init__(self, size: int, vocabulary: int) -> None:
        super().__init__()
        self.projection = nn.Linear(size, vocabulary)
        nn.init.zeros_(self.projection.bias)
        odds = INITIAL_BLANK_PROBABILITY / (1 - INITIAL_BLANK_PROBABILITY)
        nn.init.constant_(self.projection.bias[BLANK], math.log(odds * max(1, vocabulary - 1)))

    def forward(self, states: Tensor) -> Tensor:
        """Map [B, T, M] to log-probabilities [B, T, V], float32."""
        return self.projection(states).float().log_softmax(dim=-1)
