"""Certainty of a recording: what it weighs, and what it says of audio unlike the training data."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from asr import Recognizer
from asr.confidence import certainty, usual_limit
from asr.data.manifest import load_cuts


def test_silence_weighs_nothing_and_doubt_between_labels_counts() -> None:
    sure = torch.tensor([[0.02, 0.98, 0.0]] * 3)
    silence = torch.tensor([[1.0, 0.0, 0.0]] * 50)
    doubt = torch.tensor([[0.0, 0.5, 0.5]] * 3)
    assert certainty(sure.log()) == pytest.approx(1.0)
    assert certainty(torch.cat([silence, sure, silence]).log()) == pytest.approx(1.0)
    assert certainty(doubt.log()) == pytest.approx(0.5)
    mixed = certainty(torch.cat([sure, doubt]).log())
    assert mixed == pytest.approx((3 * 0.98 + 3 * 0.5) / (3 * 0.98 + 3))
    assert certainty(silence.log()) == 0.0


def test_the_usual_limit_leaves_out_one_in_twenty() -> None:
    assert usual_limit([x / 100 for x in range(100)], [7] * 100) == pytest.approx(0.05, abs=0.011)
    assert usual_limit([0.9, 0.1, 0.8], [500, 10, 490]) == 0.8  # a short one doesn't set the limit
    assert usual_limit([], []) == 0.0


def test_a_model_knows_how_certain_it_usually_is(
    trained: Path, tone_corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recognizer = Recognizer.load(trained)
    limit = recognizer.config.usual_certainty
    assert 0.5 < limit < 1
    for cut in list(load_cuts(tone_corpus / "test.cuts.jsonl.gz"))[:4]:
        transcript = recognizer.transcribe(cut.recording.sources[0].source)
        assert transcript.certainty > limit - 0.1
    noise = tmp_path / "noise.wav"
    soundfile.write(noise, 0.1 * np.random.default_rng(0).standard_normal(48000), 16000)
    transcript = recognizer.transcribe(noise)
    assert transcript.low_confidence
    assert transcript.certainty < limit
    assert "noise.wav: low confidence" in caplog.text
    caplog.clear()
    assert not recognizer.transcribe(noise, min_confidence=0.0).low_confidence
    assert not caplog.text
