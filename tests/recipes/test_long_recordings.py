"""Long recordings made of utterances, and their error rates."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from asr_recipes.demo.long import (
    Options,
    errors_per_utterance,
    errors_singly,
    make_recording,
    pooled_counts,
    run,
)

from asr import Recognizer
from asr.data.manifest import read_cuts


def test_a_recording_holds_its_utterances_in_order(tone_corpus: Path, tmp_path: Path) -> None:
    cuts = list(read_cuts(tone_corpus / "test.cuts.jsonl.gz"))
    chosen = make_recording(cuts, 0.5, 16000, seed=1, path=tmp_path / "a.wav")
    audio, rate = soundfile.read(tmp_path / "a.wav")
    assert 30 * rate <= len(audio) < 33 * rate
    assert {cut.id for cut in chosen[: len(cuts)]} == {cut.id for cut in cuts}
    first, _ = soundfile.read(chosen[0].recording.sources[0].source)
    assert np.array_equal(audio[: len(first)], first)
    assert np.abs(audio[len(first) : len(first) + int(0.3 * rate)]).max() < 0.003
    make_recording(cuts, 0.5, 16000, seed=1, path=tmp_path / "b.wav")
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


@pytest.mark.slow
def test_every_system_is_measured_in_its_own_process(
    trained: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    options = Options(
        model=str(trained),
        data=str(tone_corpus),
        minutes=[0.1],
        systems=["chunked:4:1"],
        folder=str(tmp_path),
    )
    (figure,) = run(options)
    recognizer = Recognizer.load(trained)
    cuts = list(read_cuts(tone_corpus / "test.cuts.jsonl.gz"))
    assert figure.singly <= max(errors_singly(recognizer, cuts).values())
    assert 0 < figure.interval[0] <= figure.error_rate <= figure.interval[1] < 2
    assert figure.singly_interval[0] <= figure.singly <= figure.singly_interval[1]
    assert 0.1 < figure.peak_gib < 8
    assert figure.wall_s > figure.real_time_factor > 0
    assert len(json.loads((tmp_path / "results.json").read_text())["figures"]) == 1


def test_errors_are_assigned_to_their_utterance(tone_corpus: Path) -> None:
    """They sum to the edit distance; insertions at the very end count for the last utterance."""
    hypothesis = ["x", "a", "b", "d", "e", "z"]
    errors = errors_per_utterance([2, 2, 1], ["a", "b", "c", "d", "e"], hypothesis)
    assert errors == [1, 1, 1]
    assert errors_per_utterance([1, 1], ["a", "b"], []) == [1, 1]
    first, second = list(read_cuts(tone_corpus / "test.cuts.jsonl.gz"))[:2]
    assert pooled_counts([first, second, first], errors).tolist() == [2, 1]
