"""The CTC head: encoder states to log-probabilities over the vocabulary."""

import math

from torch import Tensor, nn

from asr.losses.ctc import BLANK

INITIAL_BLANK_PROBABILITY = 0.9


class CTCHead(nn.Module):
    """Linear projection to the vocabulary with log-softmax in float32.

    The bias is initialised to predict blank with probability 0.9. With uniform initial probabilities and
    ten frames per label, training can get stuck predicting each label until the next one, without blanks.

    Args:
        size: model size M.
        vocabulary: vocabulary size V, including blank (index 0).
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
