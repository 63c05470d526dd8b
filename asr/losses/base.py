"""The interface of the losses."""

from abc import abstractmethod

from torch import Tensor, nn


class Loss(nn.Module):
    """A loss of label sequences, given the outputs of the acoustic model.

    Buffers hold what a loss estimates from the training labels. They aren't saved: when training resumes,
    they are estimated again, and `digest` tells whether they are the same.

    Attributes:
        digest: hash of the estimates from the training labels; empty if there are none.
    """

    digest = ""

    @abstractmethod
    def forward(
        self, outputs_BTO: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
    ) -> Tensor:
        """Return the loss of each utterance, summed over its labels.

        Args:
            outputs_BTO: [B, T, O] outputs of the acoustic model, float32.
            lengths_B: [B] valid frames.
            tokens_BU: [B, U] targets, right-padded.
            token_lengths_B: [B] valid targets.

        Returns:
            [B] losses in nats; infinite if an utterance has too few frames for its target.
        """
