"""Recordings read in blocks equal recordings read whole; damage is reported in one line."""

import threading
import time
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
import soxr

from asr.data import audio as audio_module
from asr.data import recording
from asr.data.audio import convert
from asr.data.audio_file import is_silent
from asr.data.recording import channels_of, read_recording, resampled
from asr.errors import UserError


def noise(samples: int, channels: int = 1, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (0.1 * random.standard_normal((samples, channels))).astype(np.float32)


@pytest.mark.parametrize(("rate", "wanted"), [(44100, 16000), (8000, 16000), (48000, 8000), (11025, 16000)])
@pytest.mark.parametrize("block", [1, 700, 5000, 100_000])
def test_resampling_in_blocks_equals_resampling_the_whole(rate: int, wanted: int, block: int) -> None:
    audio = noise(30_011, 2).T.copy()
    blocks = iter(audio[:, i : i + block] for i in range(0, audio.shape[1], block))
    found = np.concatenate(list(resampled(blocks, rate, wanted)), axis=1)
    assert np.array_equal(found, soxr.resample(audio.T, rate, wanted).T)


@pytest.mark.parametrize("rate", [11025, 22050, 44056, 44100, 48000, 176_400])
def test_tones_above_half_the_target_rate_vanish_and_those_below_stay(rate: int) -> None:
    """A tone of 8.5 kHz was heard as one of 7.5 kHz, weakened by only 11 dB (torchaudio's default filter)."""
    seconds = np.arange(rate) / rate
    for hertz in (200, 3000, 5000, 7000, 8500, 12_000):
        if hertz < rate / 2:
            tone = np.sin(2 * np.pi * hertz * seconds).astype(np.float32)
            found = convert(tone, rate, 16_000)
            expected = np.sin(2 * np.pi * hertz * np.arange(16_000) / 16_000) if hertz < 8000 else 0.0
            assert len(found) == 16_000
            assert np.abs(found - expected)[200:-200].max() < 1e-3


def test_threads_warn_once_of_resampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command that reads ahead warned twice, because two threads came to the first recordings."""
    together, warned = threading.Barrier(2), []
    monkeypatch.setattr(audio_module, "_noticed", set())  # other tests have read such audio

    def warn(*message: object) -> None:
        time.sleep(0.1)  # for the other thread
        warned.append(message)

    monkeypatch.setattr(audio_module.log, "warning", warn)

    def read() -> None:
        together.wait()
        audio_module.notice_resampling([8001], 16000)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(warned) == 1


def test_resampling_from_a_coprime_rate_keeps_time() -> None:
    seconds = np.arange(44101 * 5) / 44101
    tone = np.sin(2 * np.pi * 440 * seconds).astype(np.float32)[None]
    found = np.concatenate(list(resampled(iter([tone]), 44101, 16000)), axis=1)[0]
    expected = np.sin(2 * np.pi * 440 * np.arange(len(found)) / 16000)
    assert abs(len(found) - 5 * 16000) <= 1
    assert np.abs(found - expected)[100:-100].max() < 0.01


def test_channels_are_mixed_or_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    audio = noise(20_000, 2)
    path = tmp_path / "two.wav"
    soundfile.write(path, audio, 8000, subtype="FLOAT")
    monkeypatch.setattr(recording, "BLOCK_S", 1)
    left, right = read_recording(path, 8000, "separate")
    assert np.array_equal(left, audio[:, 0])
    assert np.array_equal(right, audio[:, 1])
    assert "averaged" not in caplog.text
    (mixed,) = read_recording(path, 8000)
    assert np.allclose(mixed, audio.mean(axis=1))
    assert "two.wav: 2 channels are averaged" in caplog.text
    with pytest.raises(UserError, match="channels='left'"):
        read_recording(path, 8000, "left")


def write_video(path: Path, sound: bool) -> None:
    with av.open(str(path), "w") as container:
        picture = container.add_stream("mpeg4", rate=10)
        picture.width = picture.height = 32
        speech = container.add_stream("aac", rate=16000, layout="mono") if sound else None
        for _ in range(10):
            frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), dtype=np.uint8), format="rgb24")
            container.mux(picture.encode(frame))
        container.mux(picture.encode(None))
        if speech:
            frame = av.AudioFrame.from_ndarray(noise(16000).T, format="fltp", layout="mono")
            frame.sample_rate = 16000
            container.mux(speech.encode(frame))
            container.mux(speech.encode(None))


def test_a_video_s_audio_is_read_under_any_file_name(tmp_path: Path) -> None:
    video = tmp_path / "talk.mp4"
    write_video(video, sound=True)
    (audio,) = read_recording(video, 16000)
    assert len(audio) == pytest.approx(16000, abs=2100)  # AAC adds its delay
    assert audio.std() == pytest.approx(0.1, rel=0.3)
    for name in ("talk.wav", "talk.raw"):
        other = tmp_path / name
        other.write_bytes(video.read_bytes())
        assert np.array_equal(read_recording(other, 16000)[0], audio)
    silent = tmp_path / "silent.mp4"
    write_video(silent, sound=False)
    with pytest.raises(UserError, match=r"silent\.mp4: not a readable audio file \(no audio in this file\)"):
        read_recording(silent, 16000)


def test_files_without_valid_audio_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    with pytest.raises(UserError, match=r"x\.wav: expected an audio file, found no such file"):
        read_recording(path, 16000)
    path.touch()
    with pytest.raises(UserError, match=r"x\.wav: empty file"):
        read_recording(path, 16000)
    path.write_text("these are no samples")
    with pytest.raises(UserError, match=r"x\.wav: not a readable audio file"):
        read_recording(path, 16000)
    soundfile.write(path, np.zeros(1600), 16000)
    content = bytearray(path.read_bytes())
    content[20:22] = b"\x34\x12"  # format tag
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.wav: not a readable audio file \(audio of an unknown codec\)"):
        read_recording(path, 16000)
    soundfile.write(path, np.zeros((0, 1), dtype=np.float32), 16000)
    with pytest.raises(UserError, match=r"x\.wav: no samples"):
        read_recording(path, 16000)
    soundfile.write(path, np.array([0.0, np.nan], dtype=np.float32), 16000, subtype="FLOAT")
    with pytest.raises(UserError, match=r"x\.wav: sample 1 is not finite"):
        read_recording(path, 16000)


def test_clipping_and_truncation_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "loud.wav"
    soundfile.write(path, np.clip(20 * noise(16000), -1, 1), 16000)
    read_recording(path, 16000)
    assert "loud.wav: clipped: " in caplog.text
    assert "truncated" not in caplog.text
    path.write_bytes(path.read_bytes()[:20_000])
    (audio,) = read_recording(path, 16000)
    assert len(audio) == (20_000 - 44) // 2
    assert (
        "loud.wav: expected 32044 bytes, as its header says, found 20000 (a truncated file?)" in caplog.text
    )


def test_a_damaged_flac_is_read_up_to_the_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "BLOCK_S", 1)
    path = tmp_path / "x.flac"
    audio = noise(64_000)
    soundfile.write(path, audio, 16000)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (found,) = read_recording(path, 16000)
    assert 16_000 <= len(found) < 40_000
    assert np.abs(found - audio[: len(found), 0]).max() < 1e-4
    assert "x.flac: damaged after" in caplog.text


def test_silence_is_distinguished_from_quiet_speech() -> None:
    assert is_silent(np.zeros(100, dtype=np.float32))
    assert is_silent(1e-4 * noise(100)[:, 0])
    assert not is_silent(0.01 * noise(100)[:, 0])


@pytest.mark.parametrize("rate", [1, 99])
def test_a_sample_rate_that_no_recording_has_is_refused(rate: int, tmp_path: Path) -> None:
    """Resampling 10 samples at 1 Hz gave 10 s of audio; a rate of 0 divided by zero."""
    soundfile.write(tmp_path / "x.wav", np.zeros(10), rate)
    with pytest.raises(
        UserError, match=f"x.wav: expected a sample rate of 4000 to 384000 Hz, found {rate} Hz"
    ):
        read_recording(tmp_path / "x.wav", 16000)


def test_channels_that_cancel_each_other_are_not_called_silent(tmp_path: Path) -> None:
    """A stereo recording with one channel inverted gave an empty transcript."""
    tone = 0.3 * np.sin(np.arange(16000) / 7)
    both = np.stack([tone, -tone], axis=1)
    soundfile.write(tmp_path / "a.wav", both, 16000)
    for read in (
        lambda channels: read_recording(tmp_path / "a.wav", 16000, channels),
        lambda channels: channels_of(both.T, 16000, 16000, channels),
    ):
        with pytest.raises(UserError, match="found some that cancel each other: channels=separate"):
            read("mix")
        assert len(read("separate")) == 2
    soundfile.write(tmp_path / "a.wav", 0 * both, 16000)
    assert len(read_recording(tmp_path / "a.wav", 16000, "mix")) == 1


def test_channels_that_nearly_cancel_each_other_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A trace of noise beside an inverted channel hid that the speech was gone."""
    speech, hum = noise(16000)[:, 0], 0.02 * np.sin(np.arange(16000) / 7)
    for name, other, said in (
        ("unrelated", noise(32000)[16000:, 0], False),
        ("one.silent", 0 * speech, False),
        ("weaker", -0.3 * speech, False),
        ("inverted", hum - speech, True),
    ):
        both = np.stack([speech, other], axis=1).astype(np.float32)
        soundfile.write(tmp_path / f"{name}.wav", both, 16000)
        for read in (
            lambda name=name: read_recording(tmp_path / f"{name}.wav", 16000),
            lambda both=both: channels_of(both.T, 16000, 16000),
        ):
            caplog.clear()
            read()
            assert ("nearly cancel each other" in caplog.text) == said, name


def test_floats_beyond_full_scale_are_not_clipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Float files with peaks of 3 were reported as clipped; those cut off at 1 are."""
    for limit, said in ((9, False), (1, True)):
        soundfile.write(tmp_path / "x.wav", np.clip(10 * noise(16000), -limit, limit), 16000, "FLOAT")
        caplog.clear()
        read_recording(tmp_path / "x.wav", 16000)
        assert ("clipped" in caplog.text) == said


def test_resampling_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rate of a corpus had a line of its own, in each process that loaded data."""
    monkeypatch.setattr(audio_module, "_noticed", set())
    for rates in ({16000}, {8003, 16000, 8002}, {8003}, {44100}):
        audio_module.notice_resampling(rates, 16000)
    assert caplog.messages == [
        "audio at other rates, such as 8002, 8003 Hz, is resampled to the model's 16000 Hz"
    ]
