"""The head: maps encoder states to scores of the outputs that labels emit."""

import math

from torch import Tensor, nn

from asr.attention.products import Linear
from asr.losses.ctc import BLANK
from asr.losses.topology import output_count

INITIAL_BLANK_PROBABILITY = 0.9


class Head(nn.Module):
    """Linear projection to the outputs of a topology, with log-softmax in float32.

    For `ctc`, the bias is initialised to predict blank with probability 0.9. With uniform initial
    probabilities and ten frames per label, training can get stuck predicting each label until the next,
    without blanks.

    Args:
        size: model size M.
        vocabulary: vocabulary size V, including blank (index 0).
        topology: label topology, `ctc` or `hmm`.
    """

    def __init__(self, size: int, vocabulary: int, topology: str = "ctc") -> None:
        super().__init__()
        self.topology = topology
        self.projection = Linear(size, output_count(topology, vocabulary))
        nn.init.zeros_(self.projection.bias)
        if topology != "ctc":
            return
        odds = INITIAL_BLANK_PROBABILITY / (1 - INITIAL_BLANK_PROBABILITY)
        nn.init.constant_(self.projection.bias[BLANK], math.log(odds * max(1, vocabulary - 1)))

    def forward(self, states: Tensor) -> Tensor:
        """Map [B, T, M] to log-probabilities of the outputs [B, T, O], float32.

        In training with `hmm`, they are unnormalised, because its loss doesn't depend on normalisation.
        """
        scores = self.projection(states).float()
        return scores if self.training and self.topology == "hmm" else scores.log_softmax(dim=-1)
