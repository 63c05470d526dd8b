"""Maximum mutual information over whole utterances, from a flat start: CTC-CRF and lattice-free MMI."""

from torch import Tensor

from asr.lengths import keep_mask
from asr.losses.base import Loss
from asr.losses.denominator import Denominator
from asr.losses.label_ngram import LabelNgram
from asr.losses.numerator import numerator
from asr.losses.occupancy import log_sum


class MMILoss(Loss):
    """The negative log-posterior of the target among all label sequences.

    Let p be the n-gram of labels, and the sums range over all output sequences π that spell a label sequence:

        L = −log p(y) Σ_{π → y} exp(scores of π) + log Σ_{y'} p(y') Σ_{π → y'} exp(scores of π).

    With topology `ctc` this is CTC-CRF (Xiang and Ou 2019, *CRF-based Single-stage Acoustic Modeling with CTC
    Topology*), with `hmm` lattice-free MMI without alignments (Hadian et al. 2018). L does not
    change if a number is added to all outputs of a frame, so normalised and unnormalised outputs give the
    same loss.

    Args:
        ngram: n-gram of labels.
        order: order of the n-gram; bigrams use dense products.
        topology: `ctc` or `hmm`.
        leak: leaky-HMM coefficient of the denominator.
        ctc_weight: weight of an additional term, the target's negative log-probability with outputs
            normalised in every frame: for `ctc`, the CTC loss.
    """

    def __init__(
        self, ngram: LabelNgram, *, order: int, topology: str, leak: float, ctc_weight: float
    ) -> None:
        super().__init__()
        self.ngram = ngram
        self.topology = topology
        self.ctc_weight = ctc_weight
        self.digest = ngram.digest
        self.denominator = Denominator(ngram, topology, leak, dense=order == 2)

    def forward(
        self, outputs_BTO: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
    ) -> Tensor:
        """See `Loss`."""
        keep_BT1 = keep_mask(lengths_B, outputs_BTO.shape[1]).unsqueeze(2)
        outputs_BTO = outputs_BTO.masked_fill(~keep_BT1, 0.0)
        numerator_B = log_sum(
            outputs_BTO,
            lambda outputs, wanted: numerator(
                outputs, lengths_B, tokens_BU, token_lengths_B, self.topology, wanted
            ),
        )
        denominator_B = log_sum(
            outputs_BTO, lambda outputs, wanted: self.denominator(outputs, lengths_B, wanted)
        )
        targets = zip(tokens_BU.tolist(), token_lengths_B.tolist(), strict=True)
        priors = [self.ngram.log_probability(tokens[:length]) for tokens, length in targets]
        losses_B = denominator_B - numerator_B - denominator_B.new_tensor(priors)
        if self.ctc_weight:  # only this part depends on how outputs are normalised
            normaliser_BT = outputs_BTO.logsumexp(dim=2).masked_fill(~keep_BT1[:, :, 0], 0.0)
            losses_B = losses_B + self.ctc_weight * (normaliser_BT.double().sum(dim=1) - numerator_B)
        return losses_B.to(outputs_BTO.dtype)
