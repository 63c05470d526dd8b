"""The training loss over intermediate outputs and over several views of an utterance."""

import torch
from torch import Tensor

from asr.lengths import zero_padding
from asr.losses.base import Loss
from asr.losses.options import LossConfig

INTERMEDIATE_WEIGHT = 0.3  # as in Lee and Watanabe 2021


def training_loss(
    loss: Loss,
    config: LossConfig,
    outputs: list[Tensor],
    lengths: Tensor,
    tokens_BU: Tensor,
    token_lengths_B: Tensor,
) -> Tensor:
    """Return the loss of each utterance, over its views and intermediate outputs.

    L = (1 − w) L_final + w · mean of L_k with w = 0.3 (*Intermediate Loss Regularization for CTC-based Speech
    Recognition*, Lee and Watanabe 2021), averaged over the views, plus c times `disagreement` of
    two views of the final output (*CR-CTC*, Yao et al. 2024).

    Args:
        loss: loss of label sequences.
        config: c is `consistency`.
        outputs: outputs of intermediate blocks, then the final ones, [views · B, T, O] each.
        lengths: [views · B] valid frames.
        tokens_BU: [B, U] targets, right-padded.
        token_lengths_B: [B] valid targets.

    Returns:
        [B] losses in nats.
    """
    B = len(tokens_BU)
    views = len(lengths) // B
    tokens, token_lengths = tokens_BU.repeat(views, 1), token_lengths_B.repeat(views)
    *intermediate, final = (loss(x, lengths, tokens, token_lengths).view(views, B).mean(0) for x in outputs)
    total = final
    if intermediate:
        w = INTERMEDIATE_WEIGHT
        total = (1 - w) * final + w * torch.stack(intermediate).mean(0)
    if views == 2:
        one, other = outputs[-1].split(B)
        total = total + config.consistency * disagreement(one, other, lengths[:B])
    return total


def disagreement(one_BTO: Tensor, other_BTO: Tensor, lengths_B: Tensor) -> Tensor:
    """Return half the sum over frames of KL(sg(q) ‖ p) + KL(sg(p) ‖ q), where sg stops gradients.

    Args:
        one_BTO: [B, T, O] scores or log-probabilities of a view; p is their softmax.
        other_BTO: [B, T, O] scores or log-probabilities of the other view; q is their softmax.
        lengths_B: [B] valid frames.

    Returns:
        [B] in nats.
    """
    p, q = one_BTO.log_softmax(-1), other_BTO.log_softmax(-1)
    towards_q = torch.nn.functional.kl_div(p, q.detach(), reduction="none", log_target=True)
    towards_p = torch.nn.functional.kl_div(q, p.detach(), reduction="none", log_target=True)
    return 0.5 * zero_padding(towards_q + towards_p, lengths_B).sum((1, 2))
