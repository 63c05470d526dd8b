"""The losses by name, and their options."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from asr.losses.base import Loss
from asr.losses.ctc import ctc_loss
from asr.losses.label_ngram import estimate_labels
from asr.losses.mmi import MMILoss
from asr.losses.options import LossConfig


class CTCLoss(Loss):
    """See `ctc_loss`."""

    def forward(
        self, outputs_BTO: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
    ) -> Tensor:
        """See `Loss`."""
        return ctc_loss(outputs_BTO, lengths_B, tokens_BU, token_lengths_B)


def build_loss(config: LossConfig, vocabulary: int, targets: Iterable[Sequence[int]]) -> Loss:
    """Return the loss that the options name.

    Args:
        config: options.
        vocabulary: number of labels V, blank included.
        targets: labels of each training utterance; read only if the loss needs them.

    Raises:
        UserError: there are no labels to estimate an n-gram from.
    """
    if config.name == "ctc":
        return CTCLoss()
    return MMILoss(
        estimate_labels(targets, vocabulary, config.order),
        order=config.order,
        topology=config.topology,
        leak=config.leak,
        ctc_weight=config.ctc_weight,
    )
