"""The losses by name, and their options."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from asr.config import option, refuse
from asr.errors import UserError
from asr.losses.base import Loss
from asr.losses.ctc import ctc_loss
from asr.losses.label_ngram import estimate_labels
from asr.losses.mmi import MMILoss
from asr.losses.topology import TOPOLOGIES

LOSSES = ("ctc", "mmi")


@dataclass
class LossConfig:
    """The loss."""

    name: str = option("ctc", help="ctc | mmi (maximum mutual information over utterances)", choices=LOSSES)
    topology: str = option(
        "ctc",
        help="mmi: ctc (CTC-CRF) | hmm (two outputs per label, and silence: lattice-free MMI)",
        choices=TOPOLOGIES,
    )
    order: int = option(
        2, help="mmi: length of the denominator's n-grams of training labels, 2 | 3 | 4", choices=(2, 3, 4)
    )
    histories: int = option(
        2000, help="mmi: n-gram histories of two or more labels to keep, the most frequent ones", maximum=1e6
    )
    leak: float = option(1e-5, help="mmi: leaky-HMM coefficient of the denominator; 0: not leaky", maximum=1)
    ctc_weight: float = option(
        0.1,
        help="mmi: weight of the added CTC loss, or of its equivalent for topology=hmm",
        maximum=1e6,
    )
    intermediate: list[int] = option(
        [], help="blocks, from 1, whose outputs are trained as well, e.g. [3,6]", minimum=1, maximum=1000
    )
    intermediate_weight: float = option(0.3, help="weight of the intermediate losses' mean", maximum=1)
    consistency: float = option(
        0.0,
        help="weight of the difference between two SpecAugment views of an utterance, e.g. 0.2; batches "
        "then have half the utterances; 0: one view",
        maximum=1000,
    )

    def check(self) -> None:
        """Raise UserError for options without effect, or a block that is named twice."""
        if self.name != "mmi":
            refuse(self, ("topology", "order", "histories", "leak", "ctc_weight"), f"with loss={self.name}")
        if not self.intermediate:
            refuse(self, ("intermediate_weight",), "without loss.intermediate")
        if len(set(self.intermediate)) < len(self.intermediate):
            raise UserError(f"loss.intermediate={self.intermediate}: expected each block once")


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
        estimate_labels(targets, vocabulary, config.order, config.histories),
        order=config.order,
        topology=config.topology,
        leak=config.leak,
        ctc_weight=config.ctc_weight,
    )
