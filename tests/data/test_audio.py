"""Utterances are read where their manifest says, or refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, MonoCut, Recording
from lhotse.utils import compute_num_samples

from asr.data.audio import load_cut, sample_count
from asr.errors import UserError
from asr.preparation.cuts import recording

RATE = 16000
SAMPLES = (0.1 * np.random.default_rng(0).standard_normal((2 * RATE, 2))).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "a.wav", SAMPLES, RATE, subtype="FLOAT")
    return tmp_path / "a.wav"


def test_samples_are_counted_as_lhotse_counts_them() -> None:
    random = np.random.default_rng(0)
    for rate in (8000, 11_025, 16_000, 22_050, 44_100, 48_000):
        seconds = [*random.uniform(0, 10_000, 3000), *(np.arange(2001) / 2 / rate), 0.1 + 0.2, 1e-9]
        for x in [*seconds, *(round(x, 2) for x in seconds)]:
            assert sample_count(float(x), rate) == compute_num_samples(float(x), rate)


def test_a_part_equals_what_lhotse_reads(path: Path) -> None:
    sphere = path.with_suffix(".sph")
    soundfile.write(sphere, SAMPLES, RATE, format="NIST", subtype="PCM_16")
    wav, sph = (recording(x.suffix, x, 2 * RATE, RATE, 2) for x in (path, sphere))
    for start, duration in [
        (0.0, 2.0),
        (0.0004, 2.0),
        (0.5, 0.25),
        (1.9, 0.3),
        (0.0, 1.9995),
    ]:
        for channel in (0, 1):
            cut = MonoCut("u", start, duration, channel, [], recording=wav)
            expected = cut.load_audio()[0]
            np.testing.assert_array_equal(load_cut(cut, RATE), expected)
            np.testing.assert_allclose(load_cut(replace(cut, recording=sph), RATE), expected, atol=1e-4)


def test_each_channel_may_have_a_file(tmp_path: Path) -> None:
    sources = []
    for channel in (0, 1):
        soundfile.write(tmp_path / f"{channel}.wav", SAMPLES[:, channel], RATE, subtype="FLOAT")
        sources.append(AudioSource("file", [channel], str(tmp_path / f"{channel}.wav")))
    both = Recording("a", sources, RATE, 2 * RATE, 2.0)
    for channel in (0, 1):
        cut = MonoCut("u", 0.5, 0.5, channel, [], recording=both)
        np.testing.assert_array_equal(load_cut(cut, RATE), SAMPLES[RATE // 2 : RATE, channel])


def test_a_short_part_of_a_file_with_another_rate_is_refused(path: Path) -> None:
    """Lhotse's tolerance is half a second: it returned half of the samples, at half of their rate."""
    cut = MonoCut("u", 0.0, 0.5, 0, [], recording=recording("a", path, RATE, RATE // 2, 2))
    with pytest.raises(UserError, match=r"expected 16,000 samples at 8,000 Hz .*, found 32,000 at 16,000"):
        load_cut(cut, RATE)


@pytest.mark.parametrize(
    ("channel", "channels", "message"),
    [
        (2, 2, r"utterance u: expected a channel of its recording \(0, 1\), found channel 2"),
        (0, 1, r"utterance u: .*a\.wav has 2 channels, expected 1"),
        (0, 3, r"utterance u: .*a\.wav has 2 channels, expected 3"),
    ],
)
def test_other_channels_than_the_manifest_s_are_named(
    path: Path, channel: int, channels: int, message: str
) -> None:
    cut = MonoCut("u", 0.0, 0.5, channel, [], recording=recording("a", path, 2 * RATE, RATE, channels))
    with pytest.raises(UserError, match=message):
        load_cut(cut, RATE)


def test_a_file_that_ends_too_early_is_named(path: Path) -> None:
    cut = MonoCut("u", 1.0, 2.0, 0, [], recording=recording("a", path, 4 * RATE, RATE, 2))
    with pytest.raises(UserError, match=r"u: .*a\.wav: expected 64,000 samples .*, found 32,000"):
        load_cut(cut, RATE)


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 20])
def test_what_is_no_audio_is_named_as_such(content: bytes, tmp_path: Path) -> None:
    """FFmpeg opens such files by their name, and finds no channels."""
    path = tmp_path / "a.flac"
    path.write_bytes(content)
    cut = MonoCut("u", 0.0, 1.0, 0, [], recording=recording("a", path, RATE, RATE, 1))
    with pytest.raises(
        UserError, match=r"a\.flac: expected (audio, found an empty|an audio file, found one that)"
    ):
        load_cut(cut, RATE)
