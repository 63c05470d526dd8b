"""Sources of audio in memory and their sample rates."""

import math
from typing import Any

import numpy as np
import pytest

from asr.errors import UserError
from asr.transcription.sources import ArraySource, recordings

AUDIO = np.zeros(8000, np.float32)


@pytest.mark.parametrize("rate", [16000, 16000.0, np.int64(16000), np.uint16(16000), np.float32(16000)])
def test_any_whole_number_is_a_sample_rate(rate: Any) -> None:
    """The rate from an array of rates, a NumPy integer, was refused as no number."""
    (source,) = recordings([AUDIO], rate, "mix")
    assert isinstance(source, ArraySource)
    assert (source.rate, type(source.rate)) == (16000, int)


@pytest.mark.parametrize("rate", [True, "16000", 16000.5, math.nan, math.inf, np.float64("nan"), 16000j])
def test_nothing_else_is_one(rate: Any) -> None:
    with pytest.raises(UserError, match="recording: expected a whole number as sample_rate, found"):
        recordings([AUDIO], rate, "mix")
