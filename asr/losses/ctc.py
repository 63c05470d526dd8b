"""The CTC loss."""

from torch import Tensor, nn

BLANK = 0


def ctc_loss(log_probs_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor) -> Tensor:
    """Return the unnormalised CTC loss of each utterance (Graves et al. 2006).

    The loss is infinite if the target needs more frames than the utterance has (see
    `lengths.frames_needed`).

    Args:
        log_probs_BTV: [B, T, V] float32 log-probabilities.
        lengths_B: [B] valid frames.
        tokens_BU: [B, U] targets, right-padded.
        token_lengths_B: [B] valid targets.

    Returns:
        [B] negative log-likelihoods in nats.
    """
    return nn.functional.ctc_loss(
        log_probs_BTV.transpose(0, 1),
        tokens_BU,
        lengths_B,
        token_lengths_B,
        blank=BLANK,
        reduction="none",
        zero_infinity=False,
    )
