"""The check of audio files that every recipe uses."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data.facts import audio_facts, header_facts, recordings_among
from asr.errors import UserError

RATE = 16000
CONTAINERS = {"a.aiff": "AIFF", "a.au": "AU", "a.w64": "W64", "a.ogg": "OGG"}
CONTAINERS |= {"b.wav": "RF64", "c.wav": "NIST"}
SAMPLES = (0.1 * np.random.default_rng(0).standard_normal((3 * RATE, 2))).astype(np.float32)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.mp3", "a.WAV", *CONTAINERS])
def test_facts_of_whole_files(name, tmp_path):
    soundfile.write(tmp_path / name, SAMPLES, RATE, format=CONTAINERS.get(name))
    assert audio_facts(tmp_path / name) == header_facts(tmp_path / name) == (3 * RATE, RATE, 2)


def cut_short(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def patch(path, place, value):
    content = bytearray(path.read_bytes())
    content[place : place + 4] = struct.pack("<I", value)
    path.write_bytes(content)


def with_sample(path, value):
    samples = SAMPLES.copy()
    samples[12345, 1] = value
    soundfile.write(path, samples, RATE, subtype="FLOAT")


@pytest.mark.parametrize(
    ("name", "damage", "message", "header"),
    [
        (
            "a.wav",
            lambda path: cut_short(path, 0.5),
            r"expected \d+ bytes, as its header says, found \d+",
            True,
        ),
        ("a.wav", lambda path: cut_short(path, 0.0001), "can't be read", True),
        ("a.wav", lambda path: path.write_bytes(b""), "found an empty file", True),
        ("a.wav", lambda path: path.unlink(), "expected an audio file, found none", True),
        ("a.wav", lambda path: patch(path, 24, 1), "a sample rate of 4000 to 384000 Hz, found 1 Hz", True),
        ("a.wav", lambda path: patch(path, 24, 2_000_000_000), "found 2000000000 Hz", True),
        ("a.wav", lambda path: path.write_bytes(path.read_bytes()[:44]), "expected 192044 bytes", True),
        ("a.wav", lambda path: with_sample(path, np.nan), "sample 12345 is not finite", False),
        ("a.wav", lambda path: with_sample(path, -np.inf), "sample 12345 is not finite", False),
        ("a.flac", lambda path: cut_short(path, 0.9), "damaged after", False),
        ("a.flac", lambda path: path.write_bytes(b"fLaC" + bytes(2000)), "can't be read", True),
        *((name, lambda path: cut_short(path, 0.6), r"truncated file\?\)", True) for name in CONTAINERS),
        ("a.mp3", lambda path: cut_short(path, 0.6), "expected 48000 samples, as its header says", False),
        ("a.raw", lambda path: None, "can't be read", True),
    ],
)
def test_damaged_files_are_named(name, damage, message, header, tmp_path):
    """A header of 1 Hz, samples that are no number and truncated files passed the preparation: libsndfile
    shortens the stated length of most, and soundfile filled up truncated mp3 with what lay in memory.
    """
    path = tmp_path / name
    if name.endswith("raw"):
        path.write_bytes(bytes(100))
    else:
        soundfile.write(path, SAMPLES, RATE, format=CONTAINERS.get(name))
    damage(path)
    for check in [audio_facts, *([header_facts] if header else [])]:
        with pytest.raises(UserError, match=message) as error:
            check(path)
        assert str(error.value).startswith(f"{path}: ")


def test_a_stream_of_unknown_length_is_whole(tmp_path):
    """Programs that write to a pipe can't fill in the length."""
    for value in (0, 0xFFFFFFFF, 0x7FFFFFFF):
        soundfile.write(tmp_path / "a.wav", SAMPLES, RATE)
        patch(tmp_path / "a.wav", 4, value)
        assert audio_facts(tmp_path / "a.wav") == (3 * RATE, RATE, 2)


@pytest.mark.parametrize(("size", "whole"), [(0x80000024, True), (0xFFFFFFDB, True), (3_000_000_000, False)])
def test_a_header_of_more_than_two_gigabytes_is_believed(size, whole, tmp_path):
    """What remained of a wav file of 2.2 GB or more was taken for a stream of unknown length."""
    soundfile.write(tmp_path / "a.wav", SAMPLES, RATE)
    patch(tmp_path / "a.wav", 4, size)
    if whole:
        assert header_facts(tmp_path / "a.wav") == (3 * RATE, RATE, 2)
    else:
        with pytest.raises(UserError, match="expected 3000000008 bytes, as its header says, found 192044"):
            header_facts(tmp_path / "a.wav")


def test_content_decides_what_is_a_recording(tmp_path):
    """Recordings called .oga, .caf or .m4b were ignored: `no recording of this name`."""
    soundfile.write(tmp_path / "a.wav", SAMPLES, RATE)
    sound = (tmp_path / "a.wav").read_bytes()
    for name in ("b.oga", "c.M4B", "d", "e.f.caf"):
        (tmp_path / name).write_bytes(sound)
    (tmp_path / "damaged.mp3").write_bytes(b"x")
    np.save(tmp_path / "f.npy", SAMPLES)
    for number in range(20):
        (tmp_path / f"README{number}").write_text("Grüße\n\t")
    (tmp_path / "folder").mkdir()
    (tmp_path / "z").write_bytes(sound)
    found = recordings_among(sorted(map(str, tmp_path.iterdir())))
    names = ["a.wav", "b.oga", "c.M4B", "d", "damaged.mp3", "e.f.caf", "z"]
    assert [Path(path).name for path in found] == names


def test_a_named_pipe_is_not_opened(tmp_path):
    """`asr prepare folder` waited for ever for a named pipe that ended in .wav."""
    os.mkfifo(tmp_path / "a.wav")
    with pytest.raises(UserError, match="expected an audio file, found a pipe"):
        audio_facts(tmp_path / "a.wav")


@pytest.mark.parametrize("sizes", [(0, 0), (None, 0), (0xFFFFFFFF, 0xFFFFFFFF), (44 + 192_000, 44 + 192_000)])
def test_wav_of_streamed_recorders_is_read_to_its_end(sizes, tmp_path):
    """Sizes of 0 were taken for no samples, and those that count the header for a truncated file."""
    path = tmp_path / "a.wav"
    soundfile.write(path, SAMPLES, RATE)
    for place, size in zip((4, 40), sizes, strict=True):
        if size is not None:
            patch(path, place, size)
    assert audio_facts(path) == header_facts(path) == (3 * RATE, RATE, 2)
