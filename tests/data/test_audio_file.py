"""Every format is read from any sample on, as if it had been read whole."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from asr.data.audio import read_part
from asr.data.audio_file import AudioFile, Undecodable, open_audio
from tests.data.delayed import RATE as VIDEO_RATE
from tests.data.delayed import write_at
from tests.data.shorten_encoder import shorten, sphere_header, write_sphere

RATE = 8000
COUNT = 5000
SAMPLES = (3000 * np.random.default_rng(0).standard_normal((COUNT, 2))).clip(-32768, 32767).astype("i2")


def write_with_libsndfile(path: Path) -> None:
    formats = {".ogg": ("OGG", "VORBIS"), ".mp3": ("MP3", "MPEG_LAYER_III"), ".opus": ("OGG", "OPUS")}
    kind, coding = formats.get(path.suffix, (None, None))
    soundfile.write(path, SAMPLES, RATE, format=kind, subtype=coding)


def write_mulaw(path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (COUNT, 2))
    path.write_bytes(
        sphere_header(COUNT, RATE, 2, "ulaw,embedded-shorten-v2.00", 1) + shorten(codes, type="ulaw")
    )


def write_matroska(path: Path) -> None:
    """Samples in a container that libsndfile doesn't know."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=RATE, layout="stereo")
        for start in range(0, COUNT, 700):
            part = np.ascontiguousarray(SAMPLES[start : start + 700].reshape(1, -1))
            frame = av.AudioFrame.from_ndarray(part, format="s16", layout="stereo")
            frame.sample_rate, frame.pts = RATE, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def write_in_archive(path: Path) -> Path:
    inner = path.with_name("a.flac")
    soundfile.write(inner, SAMPLES, RATE)
    with tarfile.open(path, "w") as archive:
        archive.add(inner, "a.flac")
    with tarfile.open(path) as archive:
        member = archive.getmember("a.flac")
    return path.with_name(f"{path.name}#{member.offset_data}+{member.size}")


WRITERS: dict[str, Callable[[Path], Path | None]] = {
    "a.wav": write_with_libsndfile,
    "a.flac": write_with_libsndfile,
    "a.ogg": write_with_libsndfile,
    "a.mp3": write_with_libsndfile,
    "a.opus": write_with_libsndfile,
    "plain.sph": lambda path: write_sphere(path, SAMPLES, rate=RATE),
    "shortened.wv1": lambda path: write_sphere(path, SAMPLES, rate=RATE, compressed=True),
    "mulaw.sph": write_mulaw,
    "a.mkv": write_matroska,
    "a.tar": write_in_archive,
}
LOSSY = {"a.ogg", "a.mp3", "a.opus"}
LOSSLESS = {"a.wav", "a.flac", "plain.sph", "shortened.wv1", "a.mkv", "a.tar"}


@pytest.fixture(params=WRITERS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    written = tmp_path / request.param
    return WRITERS[request.param](written) or written


def everything(file: AudioFile) -> NDArray[np.float32]:
    with file:
        return file.read()


def test_any_part_equals_that_of_the_whole(path: Path) -> None:
    whole = everything(open_audio(path))
    if path.name.partition("#")[0] in LOSSLESS:
        np.testing.assert_array_equal(whole * 32768, SAMPLES)
    with open_audio(path) as file:
        assert (file.rate, file.channels) == (RATE, 2)
        assert file.samples in (None, len(whole))
        if path.name in LOSSY:
            return  # after a seek, libsndfile decodes the first samples from less than what lies before
        for start, count in [(0, 10), (10, 1), (700, 1400), (699, 2), (2999, 2001), (3, 4997), (0, 0)]:
            file.seek(start)
            np.testing.assert_array_equal(file.read(count), whole[start : start + count])
            more = file.read(5)
            np.testing.assert_array_equal(more, whole[start + count : start + count + 5])


@pytest.mark.parametrize("size", [1, 701, COUNT - 1, COUNT, COUNT + 1])
def test_blocks_are_the_whole_in_order(path: Path, size: int) -> None:
    with open_audio(path) as file:
        blocks = list(file.blocks(size))
    whole = everything(open_audio(path))
    assert sum(map(len, blocks)) == len(whole)
    if path.name not in LOSSY:  # what libsndfile decodes of these depends a little on the size of the blocks
        np.testing.assert_array_equal(np.concatenate(blocks), whole)
    assert min(map(len, blocks)) > 0


def test_what_no_decoder_reads_is_told_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(Undecodable, match="No such file"):
        open_audio(tmp_path / "none.wav")
    (tmp_path / "text.wav").write_text("no audio")
    with pytest.raises(Undecodable, match="Invalid data"):
        open_audio(tmp_path / "text.wav")


def test_a_file_named_like_a_place_in_an_archive_is_itself(tmp_path: Path) -> None:
    """Such a file was taken for a part of an archive that doesn't exist."""
    path = tmp_path / "a.tar#512+4096"
    soundfile.write(path, SAMPLES, RATE, format="WAV", subtype="PCM_16")
    np.testing.assert_array_equal(everything(open_audio(path)) * 32768, SAMPLES)


def test_reading_stops_at_the_end(path: Path) -> None:
    """SPHERE refused to, so training ended at the first utterance longer than a noise."""
    count = len(everything(open_audio(path)))
    with open_audio(path) as file:
        assert [len(file.read(size)) for size in (count - 10, 20, 20)] == [count - 10, 10, 0]
        assert file.read().shape == (0, 2)
        file.seek(count)
        assert len(file.read(1)) == 0
        with pytest.raises(Undecodable):
            file.seek(count + 1)


BURST = np.zeros(VIDEO_RATE, np.int16)
BURST[4000:5000] = 20_000 * np.sin(0.4 * np.arange(1000))


def with_ffmpeg(path: Path) -> NDArray[np.float32]:
    """Return what `ffmpeg -af aresample=async=1:first_pts=0` writes."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        graph = av.filter.Graph()
        nodes = graph.add_abuffer(template=stream), graph.add("aresample", "async=1:first_pts=0")
        graph.link_nodes(
            *nodes, graph.add("aformat", "sample_fmts=fltp"), graph.add("abuffersink")
        ).configure()
        parts = []
        for frame in (*container.decode(stream), None):
            if frame:  # the program counts from the container's start
                frame.pts -= round((container.start_time or 0) / 1e6 / frame.time_base)
            graph.push(frame)
            try:
                while True:
                    parts.append(graph.pull().to_ndarray()[0])
            except (av.error.EOFError, av.error.BlockingIOError):
                pass
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mkv", "pcm_s16le"), ("a.mkv", "aac"), ("a.mp4", "aac"), ("a.webm", "libopus"), ("a.ts", "aac")],
)
def test_the_number_of_a_sample_is_its_time_in_a_player(name: str, codec: str, tmp_path: Path) -> None:
    """Audio that starts 2 s after the video, or has a gap, had its words 2 s early, or as much as the gap."""
    path = write_at(tmp_path / name, codec, [(2.0, BURST), (5.0, BURST)])
    with open_audio(path) as audio:
        samples = audio.read()[:, 0]
        heard = np.flatnonzero(np.abs(samples) > 0.3) / audio.rate
        begins = heard[np.diff(heard, prepend=-1) > 0.1]
        np.testing.assert_allclose(begins, [2.25, 5.25], atol=0.003)
        audio.seek(0)
        part = read_part(audio, 5.2, 0.1)
        np.testing.assert_array_equal(part[:, 0], samples[round(5.2 * audio.rate) :][: len(part)])
        assert np.abs(part).max() > 0.3
    np.testing.assert_allclose(samples, with_ffmpeg(path), atol=1e-6)


@pytest.mark.parametrize(("name", "times"), [("a.ts", [0.0, 40.0]), ("late.mka", [2.0, 3.0])])
def test_times_that_no_player_shows_make_no_silence(name: str, times: list[float], tmp_path: Path) -> None:
    """Timestamps of broadcasts start anew; a file's first track begins at 0 s, whatever its timestamps."""
    path = write_at(tmp_path / name, "aac", [(time, BURST) for time in times], video=False)
    with open_audio(path) as audio:
        assert len(audio.read()) / audio.rate == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("times", [[0.0, 4.0], [2.0, 3.0]])
def test_gaps_and_late_starts_of_opus_are_read_like_a_player(times: list[float], tmp_path: Path) -> None:
    """Libsndfile leaves out gaps of Opus, though its length counts them: the file seemed truncated."""
    path = write_at(tmp_path / "a.opus", "libopus", [(time, BURST) for time in times], video=False)
    with open_audio(path) as audio:
        heard = np.flatnonzero(np.abs(audio.read()[:, 0]) > 0.3) / audio.rate
    begins = heard[np.diff(heard, prepend=-1) > 0.1]
    np.testing.assert_allclose(begins - begins[0], np.array(times) - times[0], atol=0.003)
    assert begins[0] == pytest.approx(0.25, abs=0.003)
