"""Rooms, noises, codecs and tempo of training audio."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from speech_data import speech_data

from asr import Recognizer
from asr.augmentation.options import CODECS, WaveformConfig
from asr.augmentation.room import room_response
from asr.augmentation.sources import find_sources, noise_part
from asr.augmentation.stages import Waveforms, mix, reverberate, tempo, transcode
from asr.errors import UserError

RATE = 16000
TONE = (0.3 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)


def power(samples: np.ndarray) -> float:
    return float(np.square(samples, dtype=np.float64).mean())


def wav(path: Path, seconds: float, rate: int = RATE) -> Path:
    path.parent.mkdir(exist_ok=True)
    noise = 0.1 * np.random.default_rng(1).standard_normal(int(seconds * rate))
    soundfile.write(path, noise, rate)
    return path.parent


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_tempo_changes_the_length_and_keeps_the_pitch(factor: float) -> None:
    faster = tempo(TONE, RATE, factor)
    assert len(faster) == round(RATE / factor)
    assert np.abs(np.fft.rfft(faster)).argmax() * RATE / len(faster) == pytest.approx(440, abs=3)


@pytest.mark.parametrize("samples", [1, 7, 400, 1601])
def test_short_audio_keeps_its_length(samples: int) -> None:
    assert len(tempo(TONE[:samples], RATE, 0.9)) == round(samples / 0.9)
    for codec in CODECS:
        decoded = transcode(TONE[:samples], RATE, codec)
        assert decoded.shape == (samples,)
        assert np.isfinite(decoded).all()


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_keep_time_and_most_of_a_tone(codec: str) -> None:
    decoded = transcode(TONE, RATE, codec)
    assert np.corrcoef(decoded, TONE)[0, 1] > 0.9
    assert not np.array_equal(decoded, TONE)


def test_the_reverberation_is_the_convolution_from_the_peak_on_at_the_same_power() -> None:
    rng = np.random.default_rng(0)
    speech, response = (rng.standard_normal(x).astype(np.float32) for x in (997, 101))
    response[13] = 9
    expected = np.convolve(speech.astype(np.float64), response)[13 : 13 + 997]
    expected *= np.sqrt(power(speech) / power(expected))
    np.testing.assert_allclose(reverberate(speech, response), expected, atol=1e-5)
    assert not reverberate(np.zeros(50, np.float32), response).any()


@pytest.mark.parametrize("t60_s", [0.2, 0.3, 0.6])
def test_rooms_decay_in_their_reverberation_time(t60_s: float) -> None:
    """Schroeder's backward integral over many rooms falls by 60 dB in T60."""
    energy = sum(
        np.square(room_response(np.random.default_rng(i), RATE, t60_s), dtype=np.float64) for i in range(40)
    )
    left_db = 10 * np.log10(np.cumsum(energy[::-1])[::-1] / energy.sum())
    early, late = (int(share * t60_s * RATE) for share in (0.2, 0.7))
    slope = (left_db[late] - left_db[early]) / 0.5
    assert slope == pytest.approx(-60, abs=2)


def test_noise_has_the_requested_snr() -> None:
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    assert 10 * np.log10(power(TONE) / power(mix(TONE, noise, 7.0) - TONE)) == pytest.approx(7, abs=0.01)
    assert np.array_equal(mix(TONE, np.zeros_like(TONE), 7.0), TONE)


def test_shares_ranges_and_recordings_are_kept(tmp_path: Path) -> None:
    noise = wav(tmp_path / "noise" / "fan.wav", 0.2, 8000)  # shorter than the speech, another rate
    found = WaveformConfig(noise=str(noise), share=0.25, volume_db=6.0)
    waveforms = Waveforms(found, RATE)
    done = [waveforms.apply(TONE, 0, i)[1] for i in range(200)]
    assert 30 < sum(words[0].startswith("noise fan.wav") for words in done) < 70
    gains_db = [float(words[-1].split()[1]) for words in done]
    assert max(map(abs, gains_db)) <= 6.0
    assert np.std(gains_db) > 2


def test_noise_of_any_format_may_be_shorter_than_the_speech(tmp_path: Path) -> None:
    """SPHERE ended a training that wav did not."""
    noise = 0.1 * np.random.default_rng(1).standard_normal(RATE // 4)
    for suffix, form in (("wav", "WAV"), ("sph", "NIST")):
        folder = tmp_path / suffix
        folder.mkdir()
        soundfile.write(folder / f"fan.{suffix}", noise, RATE, format=form, subtype="PCM_16")
    sources = (find_sources("augment.noise", str(tmp_path / x), RATE)[0] for x in ("wav", "sph"))
    found, expected = (noise_part(x, np.random.default_rng(0), RATE, RATE) for x in sources)
    np.testing.assert_array_equal(found, expected)


ALL: dict[str, Any] = {
    "tempo_factors": [0.9, 1.0, 1.1],
    "impulse_responses": "generated",
    "noise": "white",
    "volume_db": 6.0,
    "codecs": ["mu-law", "mp3"],
}


def test_augmentation_depends_on_seed_epoch_and_utterance_alone(
    tone_corpus: Path, recognizer: Recognizer
) -> None:
    found = []
    for workers, seed in ((0, 5), (1, 5), (0, 6)):
        speech = speech_data(tone_corpus, recognizer, seed=seed, augment=ALL, workers=workers)
        speech.batches = 1
        found.append(next(iter(speech.train_dataloader())).audio)
    assert torch.equal(found[0], found[1])
    assert found[0].shape != found[2].shape or not torch.equal(found[0], found[2])


def test_examples_are_written(tone_corpus: Path, recognizer: Recognizer, tmp_path: Path) -> None:
    speech_data(tone_corpus, recognizer, augment={**ALL, "examples": 2}).write_report(tmp_path)
    names = sorted(path.name for path in (tmp_path / "augmented").iterdir())
    assert names == ["001-after.wav", "001-before.wav", "002-after.wav", "002-before.wav", "augmented.tsv"]
    assert "gain" in (tmp_path / "augmented" / "augmented.tsv").read_text()


def test_bad_folders_are_named_in_one_line(tmp_path: Path) -> None:
    wav(tmp_path / "long" / "hall.wav", 2.0, 8000)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.wav").write_text("no audio")
    (tmp_path / "silent").mkdir()
    soundfile.write(tmp_path / "silent" / "x.wav", np.resize([0, 1 / 32768], 2 * RATE), RATE)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"noise": str(tmp_path / "none")}, "found no such folder"),
        ({"noise": str(tmp_path / "empty")}, "found none"),
        ({"noise": str(tmp_path / "broken")}, "x.wav: expected an audio file"),
        ({"noise": str(tmp_path / "silent")}, "expected noise, .*x.wav is silent"),
        ({"impulse_responses": str(tmp_path / "long")}, "hall.wav has 2.00 s"),
    ]
    for options, expected in cases:
        with pytest.raises(UserError, match=expected) as caught:
            Waveforms(WaveformConfig(**options), RATE, longest_s=1.0)
        assert "\n" not in str(caught.value)
