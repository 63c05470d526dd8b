"""Many recordings: the same transcripts as one by one, in order, and errors that concern one recording."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from quick import quick
from tone_corpora import tones

from asr import Recognizer
from asr.data.audio_file import Samples
from asr.transcription import pipeline
from asr.transcription.batches import GROUP, GROUP_BYTES, groups_in_order
from asr.transcription.options import TranscriptionConfig
from asr.transcription.posteriors import Posteriors

TEXTS = ["a cat", "sea back be", "tea a cat be", "back sea", "be be a", "a"]


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def speech() -> list[Samples]:
    """Recordings of different lengths and levels, which normalisation must not mix."""
    random = np.random.default_rng(3)
    levels = random.uniform(0.1, 1, 40)
    return [level * tones(TEXTS[i % len(TEXTS)], 16000, random) for i, level in enumerate(levels)]


@pytest.mark.parametrize("decoder", quick(["greedy", "prefix"], "greedy".__eq__))
def test_transcripts_are_those_of_one_by_one(
    recognizer: Recognizer, speech: list[Samples], decoder: str
) -> None:
    config = TranscriptionConfig(decoder=decoder)
    shares: list[float] = []
    together = list(recognizer.transcribe_each(speech, config, sample_rate=16000, advance=shares.append))
    alone = [
        found for own in speech for _, found in recognizer.transcribe_each([own], config, sample_rate=16000)
    ]
    assert len({transcripts[0].text for transcripts in alone}) > 3
    assert [position for position, _ in together] == list(range(len(speech)))
    for (_, (found,)), (expected,) in zip(together, alone, strict=True):
        assert (found.text, found.tokens, found.times_s) == (expected.text, expected.tokens, expected.times_s)
        assert found.confidence == pytest.approx(expected.confidence, abs=1e-3)
    assert sum(shares) == pytest.approx(len(speech))


def test_a_failing_recording_leaves_the_others(
    recognizer: Recognizer, speech: list[Samples], tmp_path: Path
) -> None:
    for number, samples in enumerate(speech[:6]):
        soundfile.write(tmp_path / f"{number}.wav", samples, 16000)
    (tmp_path / "1.wav").write_bytes(b"RIFF" + bytes(200))
    (tmp_path / "2.wav").unlink()
    soundfile.write(tmp_path / "3.wav", speech[0][:50], 16000)
    soundfile.write(tmp_path / "4.wav", np.stack([speech[4], speech[4][::-1]], axis=1), 16000)
    paths = [tmp_path / f"{number}.wav" for number in range(6)]
    config = TranscriptionConfig(channels="separate")
    outcomes = [outcome for _, outcome in recognizer.transcribe_each(paths, config)]
    errors = [str(outcome) if isinstance(outcome, Exception) else "" for outcome in outcomes]
    assert "1.wav: not a readable audio file" in errors[1]
    assert "2.wav: expected an audio file, found no such file" in errors[2]
    assert "3.wav: 3.1 ms is shorter than one frame" in errors[3]
    assert [transcript.channel for transcript in outcomes[4]] == [1, 2]
    for number in (0, 5):
        assert outcomes[number][0].text == recognizer.transcribe(paths[number]).text


def test_a_batch_that_does_not_fit_into_memory_is_encoded_one_by_one(
    recognizer: Recognizer, speech: list[Samples], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = max(map(len, speech))
    encode = pipeline.encode

    def limited(model: torch.nn.Module, audios: list[Samples]) -> Posteriors:
        if len(audios) > 1 or len(audios[0]) == longest:
            raise RuntimeError("you can't allocate memory")
        return encode(model, audios)

    expected = [transcript.text for transcript in recognizer.transcribe(speech, 16000)]
    monkeypatch.setattr(pipeline, "encode", limited)
    outcomes = recognizer.transcribe_each(speech, TranscriptionConfig(), sample_rate=16000)
    for samples, (_, outcome), text in zip(speech, outcomes, expected, strict=True):
        if len(samples) == longest:
            assert isinstance(outcome, RuntimeError)
        else:
            assert outcome[0].text == text


def test_an_unknown_error_is_not_hidden(
    recognizer: Recognizer, speech: list[Samples], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("shapes")

    monkeypatch.setattr(pipeline, "encode", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        recognizer.transcribe(speech, 16000)


def test_groups_keep_the_order_and_large_recordings_are_alone() -> None:
    sizes = [10] * (GROUP + 2) + [GROUP_BYTES // 2] * 3 + [GROUP_BYTES + 1, 0, None, 10]
    groups = groups_in_order(sizes)
    assert [position for group in groups for position in group] == list(range(len(sizes)))
    assert [len(group) for group in groups] == [GROUP, 3, 2, 1, 1, 1, 1]
    assert groups_in_order([]) == []
