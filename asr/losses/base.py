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
        """Return the loss of each utterance, not divided by its number of labels.

        Args:
            outputs_BTO: [B, T, O] float32 log-probabilities; see `Head` for the O outputs of a topology.
            lengths_B: [B] valid frames.
            tokens_BU: [B, U] labels of the transcripts, right-padded.
            token_lengths_B: [B] numbers of labels.

        Returns:
            [B] losses in nats; infinite if an utterance has too few frames for its target.
        """
