"""The head: initial bias, and normalisation by topology."""

import pytest
import torch

from asr.losses.ctc import BLANK
from asr.model.head import INITIAL_BLANK_PROBABILITY, Head


@pytest.mark.parametrize("vocabulary", [2, 41, 1000])
def test_a_new_head_prefers_blank_and_treats_labels_alike(vocabulary: int) -> None:
    probs_V = Head(8, vocabulary)(torch.zeros(1, 1, 8))[0, 0].exp()
    assert probs_V[BLANK].item() == pytest.approx(INITIAL_BLANK_PROBABILITY, abs=1e-5)
    others = torch.cat((probs_V[:BLANK], probs_V[BLANK + 1 :]))
    torch.testing.assert_close(others, others[0].expand_as(others))
