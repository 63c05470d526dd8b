"""The losses by name, their options, and the interface that training uses."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from asr.config import option
from asr.losses.ctc import ctc_loss

LOSSES = ("ctc",)


@dataclass
class LossConfig:
    """The loss."""

    name: str = option("ctc", help=" | ".join(LOSSES), choices=LOSSES)


class Loss(nn.Module):
    """A loss of label sequences given the outputs of the acoustic model.

    What a loss estimates from the training labels is in buffers that are not saved: it is estimated again
    when training resumes, and `digest` tells whether it is the same.

    Attributes:
        digest: hash of what was estimated from the training labels; empty if nothing was.
    """

    digest = ""

    @abstractmethod
    def forward(
        self, outputs_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
    ) -> Tensor:
        """Return the loss of each utterance, summed over its labels.

        Args:
            outputs_BTV: [B, T, V] outputs of the acoustic model, float32.
            lengths_B: [B] valid frames.
            tokens_BU: [B, U] targets, right-padded.
            token_lengths_B: [B] valid targets.

        Returns:
            [B] losses in nats; infinite if an utterance has too few frames for its target.
        """


class CTCLoss(Loss):
    """See `ctc_loss`."""

    def forward(
        self, outputs_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
    ) -> Tensor:
        """See `Loss`."""
        return ctc_loss(outputs_BTV, lengths_B, tokens_BU, token_lengths_B)


def build_loss(config: LossConfig) -> Loss:
    """Return the loss that the options name."""
    return CTCLoss()
