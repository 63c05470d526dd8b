"""The CTC loss and the minimum number of frames."""

import torch

from asr.lengths import frames_needed
from asr.losses.ctc import ctc_loss


def test_the_loss_is_finite_exactly_if_there_are_enough_frames() -> None:
    for tokens in ([1], [1, 1], [1, 2, 2, 2, 3], []):
        for frames in range(1, 9):
            loss = ctc_loss(
                torch.zeros(1, frames, 4).log_softmax(-1),
                torch.tensor([frames]),
                torch.tensor([tokens], dtype=torch.int64).view(1, -1),
                torch.tensor([len(tokens)]),
            )
            assert bool(loss.isfinite()) == (frames >= frames_needed(tokens, "ctc"))
