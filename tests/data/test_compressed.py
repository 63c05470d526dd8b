"""The length, samples and end of compressed audio, where its header states none, a wrong one or not all."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from asr.data.audio import load_cut
from asr.data.audio_file import Undecodable, open_audio
from asr.data.containers import mp3_frame_bytes
from asr.data.facts import audio_facts, header_facts
from asr.data.recording import read_recording
from asr.errors import UserError
from asr.preparation.cuts import recording, utterance_cut

RATE = 16000
NOISE = (0.1 * np.random.default_rng(0).standard_normal(3 * RATE)).astype(np.float32)
FRAME = 576  # samples of an MP3 frame at 16 kHz


def write_mp3(path: Path, samples: np.ndarray = NOISE, *, xing: bool = False, kind: str = "mp3") -> Path:
    with av.open(str(path), "w", format=kind, options={"write_xing": str(int(xing))}) as container:
        stream = container.add_stream("libmp3lame", rate=RATE, layout="mono")
        for start in range(0, len(samples), FRAME):
            part = (32767 * samples[None, start : start + FRAME]).astype("i2")
            frame = av.AudioFrame.from_ndarray(part, format="s16p", layout="mono")
            frame.sample_rate, frame.pts = RATE, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_ogg(path: Path, coding: str, samples: np.ndarray = NOISE) -> Path:
    soundfile.write(path, samples, RATE, format="OGG", subtype=coding)
    return path


def joined(path: Path, *parts: Path) -> Path:
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def without_end(path: Path) -> Path:
    """Remove the last page of an Ogg file, which marks the end, as a recorder of a stream does."""
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"OggS")])
    return path


def of_unknown_length(path: Path) -> Path:
    """Write FLAC as a program does that writes to a pipe: the header states no length."""
    soundfile.write(path, NOISE, RATE)
    content = bytearray(path.read_bytes())
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    path.write_bytes(content)
    return path


def cut_short(path: Path, share: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    return path


def appended_mp3(folder: Path) -> Path:
    part = write_mp3(folder / "part.mp3", xing=True)
    return joined(folder / "a.mp3", part, part)


def changing_mp3(folder: Path) -> Path:
    """Write silence, then noise: their frames differ in length, so the first ones mislead an estimate."""
    half = 0 * NOISE
    parts = (write_mp3(folder / "0.mp3", half), write_mp3(folder / "1.mp3", np.concatenate([NOISE, half])))
    return joined(folder / "a.mp3", *parts)


def chained(folder: Path, coding: str) -> Path:
    first, second = (
        write_ogg(folder / "0.ogg", coding),
        write_ogg(folder / "1.ogg", coding, NOISE[: 2 * RATE]),
    )
    return joined(folder / "a.ogg", first, second)


# Each writes a file; its length in seconds, and by how much a codec's delay may lengthen it.
FILES: dict[str, tuple[Callable[[Path], Path], float, float]] = {
    "MP3 with a Xing header": (lambda folder: write_mp3(folder / "a.mp3", xing=True), 3, 0),
    "MP3 without one": (lambda folder: write_mp3(folder / "a.mp3"), 3, 0.12),
    "MP3 without one, of changing content": (changing_mp3, 9, 0.3),
    "MP3 behind the end that its Xing header states": (appended_mp3, 6, 0.2),
    "MP3 in wav": (lambda folder: write_mp3(folder / "a.wav", kind="wav"), 3, 0.12),
    "chained Vorbis": (lambda folder: chained(folder, "VORBIS"), 5, 0.03),
    "chained Opus": (lambda folder: chained(folder, "OPUS"), 5, 0.03),
    "Opus without an end": (lambda folder: without_end(write_ogg(folder / "a.opus", "OPUS")), 1.9, 0.1),
    "Vorbis without an end": (lambda folder: without_end(write_ogg(folder / "a.ogg", "VORBIS")), 2, 1),
    "FLAC of unknown length": (lambda folder: of_unknown_length(folder / "a.flac"), 3, 0),
}


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, float, float]:
    write, seconds, delay = FILES[request.param]
    return write(tmp_path), seconds, delay


def test_length_samples_and_end_come_from_one_decoder(file: tuple[Path, float, float]) -> None:
    """The second part of a chained Ogg and what follows a Xing header's end were dropped, MP3 without such a
    header was refused for an estimate, and FLAC and Opus that had been streamed were refused or crashed.
    """
    path, seconds, delay = file
    samples, rate, channels = audio_facts(path)
    assert header_facts(path) == (samples, rate, channels)
    assert channels == 1
    assert seconds <= samples / rate <= seconds + delay
    with open_audio(path) as audio:
        whole = audio.read()
        assert audio.samples in (None, len(whole))
        assert len(whole) == samples
        assert not len(audio.read(1))
    with open_audio(path) as audio:
        assert sum(map(len, audio.blocks(701))) == samples
    (heard,) = read_recording(path, rate)
    assert len(heard) == samples
    assert np.abs(heard[-rate // 2 :]).max() > 0.05 or path.name == "a.mp3"  # noise up to the end


def test_a_cut_at_the_end_has_the_samples_there(file: tuple[Path, float, float]) -> None:
    path, seconds, _ = file
    samples, rate, channels = audio_facts(path)
    described = recording("a", str(path), samples, rate, channels)
    cut = utterance_cut("u", described, "x", "s", start_s=seconds - 0.5, duration_s=0.5)
    with open_audio(path) as audio:
        whole = audio.read()[:, 0]
        exact = audio.samples is None
    start = round(rate * (seconds - 0.5))
    part = load_cut(cut, rate)
    if exact:  # libsndfile decodes the first samples after a seek from less than all before them
        np.testing.assert_array_equal(part, whole[start : start + len(part)])
    assert len(part) == rate // 2
    assert np.abs(part[-1000:] - whole[start : start + len(part)][-1000:]).max() < 0.01


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda folder: write_mp3(folder / "a.mp3", xing=True),
            r"expected 48000 samples, as its header says",
        ),
        (
            lambda folder: write_mp3(folder / "a.mp3"),
            r"damaged after 2\.\d s \(a frame of \d+ bytes has \d+\)",
        ),
        (lambda folder: of_unknown_length(folder / "a.flac"), r"damaged after 2\.\d s"),
        (lambda folder: write_ogg(folder / "a.ogg", "OPUS"), r"bytes in its last page, as its header says"),
        (lambda folder: write_ogg(folder / "a.ogg", "VORBIS"), r"bytes in its last page, as its header says"),
        (lambda folder: chained(folder, "VORBIS"), r"bytes in its last page, as its header says"),
    ],
)
def test_what_is_shorter_than_it_says_is_an_error(
    write: Callable[[Path], Path], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        audio_facts(cut_short(write(tmp_path), 0.87))


def test_what_lies_before_damage_is_transcribed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All of a block of 30 s before it was dropped."""
    (samples,) = read_recording(cut_short(of_unknown_length(tmp_path / "a.flac"), 0.8), RATE)
    assert 2 * RATE < len(samples) < 3 * RATE
    np.testing.assert_allclose(samples, NOISE[: len(samples)], atol=1e-4)
    assert "damaged after 2." in caplog.text
    with open_audio(tmp_path / "a.flac") as audio:
        for _ in range(2):  # not the end of a shorter recording
            with pytest.raises(Undecodable):
                audio.read()


def test_audio_in_an_archive_is_read_to_its_end(tmp_path: Path) -> None:
    inner = of_unknown_length(tmp_path / "a.flac")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(inner, "a.flac")
    with tarfile.open(tmp_path / "a.tar") as archive:
        member = archive.getmember("a.flac")
    with open_audio(f"{tmp_path / 'a.tar'}#{member.offset_data}+{member.size}") as audio:
        audio.seek(2 * RATE)
        part = audio.read()
        audio.seek(RATE)
        np.testing.assert_array_equal(audio.read()[RATE:], part)
    np.testing.assert_allclose(part[:, 0], NOISE[2 * RATE :], atol=1e-4)


def test_a_playlist_opens_no_network(tmp_path: Path) -> None:
    path = tmp_path / "a.m3u8"
    path.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(Undecodable):
        open_audio(path)


@pytest.mark.parametrize("archived", [False, True])
def test_a_list_of_other_files_is_no_recording(archived: bool, tmp_path: Path) -> None:
    """An ffconcat list that was called .wav opened the files that it names."""
    soundfile.write(tmp_path / "a.wav", NOISE, RATE)
    path = tmp_path / "list.wav"
    path.write_text("ffconcat version 1.0\nfile a.wav\n")
    if archived:
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            archive.add(path, "list.wav")
        with tarfile.open(tmp_path / "a.tar") as archive:
            member = archive.getmember("list.wav")
        path = tmp_path / f"a.tar#{member.offset_data}+{member.size}"
    with pytest.raises(Undecodable):
        open_audio(path)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000])
def test_lengths_of_mp3_frames_are_those_of_the_encoder(rate: int, tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mp3"), "w") as container:
        stream = container.add_stream("libmp3lame", rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray((32767 * NOISE[None]).astype("i2"), format="s16p", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler("s16p", "mono", rate, frame_size=1152 if rate >= 32000 else 576)
        for part in resampler.resample(frame):
            container.mux(stream.encode(part))
    with av.open(str(tmp_path / "a.mp3")) as container:
        packets = [packet for packet in container.demux() if packet.size]
    assert len(packets) > 10
    assert [mp3_frame_bytes(bytes(packet)) for packet in packets] == [packet.size for packet in packets]
    assert mp3_frame_bytes(b"RIFF") == mp3_frame_bytes(b"\xff") == mp3_frame_bytes(b"\xff\xfb\x00\x00") == 0
