"""Options of the loss."""

from dataclasses import dataclass

from asr.config import option
from asr.errors import UserError

TOPOLOGIES = ("ctc", "hmm")
LOSSES = ("ctc", "mmi")


@dataclass
class LossConfig:
    """The loss, and the terms that are added to it."""

    name: str = option(
        "ctc", help="ctc | mmi (maximum mutual information over utterances)", affects="result", choices=LOSSES
    )
    topology: str = option(
        "ctc",
        help="ctc (CTC-CRF) | hmm (two outputs per label, and silence: lattice-free MMI)",
        affects="result",
        only=("name", "mmi"),
        choices=TOPOLOGIES,
    )
    order: int = option(
        2,
        help="length of the denominator's n-grams of training labels, 2 | 3 | 4",
        affects="result",
        only=("name", "mmi"),
        choices=(2, 3, 4),
    )
    leak: float = option(
        1e-5,
        help="leaky-HMM coefficient of the denominator; 0: not leaky",
        affects="result",
        only=("name", "mmi"),
        maximum=1,
    )
    ctc_weight: float = option(
        0.1,
        help="weight of the added CTC loss, or of its equivalent for topology=hmm",
        affects="result",
        only=("name", "mmi"),
        maximum=1e6,
    )
    intermediate: list[int] = option(
        [],
        help="blocks, from 1, whose outputs are trained as well, e.g. [3,6]",
        affects="result",
        minimum=1,
        maximum=1000,
    )
    consistency: float = option(
        0.0,
        help="weight of the difference between two SpecAugment views of an utterance, e.g. 0.2; batches "
        "then have half the utterances; 0: one view",
        affects="result",
        maximum=1000,
    )

    def check(self) -> None:
        """Raise UserError for a block that is named twice."""
        if len(set(self.intermediate)) < len(self.intermediate):
            raise UserError(f"loss.intermediate={self.intermediate}: expected each block once")
