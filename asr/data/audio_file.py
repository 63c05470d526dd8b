"""One reader for audio files of all formats: open, seek, read."""

import functools
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from asr.data.containers import id3_bytes, is_one_ogg_stream, mp3_frame_bytes, states_mp3_length
from asr.data.shar import is_member, read_member
from asr.data.sphere import is_sphere, read_header, read_samples
from asr.errors import UserError
from asr.files import file_state

READ_BY_LIBSNDFILE = (
    ".wav",
    ".flac",
    ".ogg",
    ".opus",
    ".mp3",
    ".aiff",
    ".aif",
    ".au",
    ".sph",
    ".wv1",
    ".wv2",
)
READ_BY_FFMPEG = (".aac", ".amr", ".m4a", ".mkv", ".mov", ".mp4", ".webm", ".wma")
AUDIO_SUFFIXES = READ_BY_LIBSNDFILE + READ_BY_FFMPEG
SAMPLE_RATES = (4_000, 384_000)  # Hz; a rate outside this range counts as a damaged header
UNKNOWN = 1 << 62  # libsndfile reports a larger length for FLAC whose header states none
# Timestamps ahead of the samples by more than GAP_S are a gap, as in FFmpeg's `aresample=async`; less is
# rounding and jitter. Longer jumps are broken timestamps: above the container's duration (LONGEST_GAP_S if it
# states none), or above DISCONTINUITY_S, as in FFmpeg, in formats whose timestamps may restart.
GAP_S, DISCONTINUITY_S, LONGEST_GAP_S = 0.1, 10.0, 3600.0

SILENT_PEAK = 1e-4  # −80 dB of full scale

Samples = NDArray[np.float32]


class Undecodable(Exception):
    """Data that a decoder can't read, or a sample that it can't seek to; the message is the reason."""


class AudioFile(ABC):
    """An open audio file with a reading position; as a context manager, it closes itself.

    Args:
        rate: sample rate in Hz.
        channels: number of channels.
        samples: samples per channel according to the header; None: known only at the end.

    Attributes:
        float_samples: whether samples are stored as floats, which may lie beyond −1 … 1.
        gaps: first sample and number of samples of each gap read so far: silence that the file doesn't
            contain, because its track starts late or skips some time.
    """

    float_samples = False

    def __init__(self, rate: int, channels: int, samples: int | None) -> None:
        self.rate, self.channels, self.samples = rate, channels, samples
        self.gaps: list[tuple[int, int]] = []

    def __enter__(self) -> "AudioFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def seek(self, sample: int) -> None:
        """Go to a sample, counted from 0; raise `Undecodable` if that fails.

        In MP3, Ogg and Opus that libsndfile reads, the first samples after a seek may differ from those of a
        full decode, because libsndfile doesn't decode everything before them.
        """

    @abstractmethod
    def read(self, samples: int | None = None) -> Samples:
        """Return the next samples, or all remaining ones, and move past them.

        Returns:
            [samples, channels] in −1 … 1; fewer than asked for only at the end.

        Raises:
            Undecodable: the data are damaged.
            UserError: a SPHERE file ends before its header says.
        """

    def blocks(self, samples: int) -> Iterator[Samples]:
        """Yield the rest in blocks of at most `samples` (SPHERE: one block); raise the errors of `read`."""
        # Not `SoundFile.blocks`, which pads a truncated file with whatever is in memory.
        while len(block := self.read(samples)):
            yield block

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


def open_audio(path: str | Path) -> AudioFile:
    """Open an audio file, or one in an archive (see `asr.data.shar`); its content selects the decoder.

    SPHERE comes first: its header states the exact length, which libsndfile silently lowers if the file
    is truncated, and its compressed samples need other decoders. libsndfile comes before FFmpeg because it
    finds a sample in wav, FLAC, Ogg and MP3 without decoding all samples before it. FFmpeg decodes the rest
    from beginning to end, including the first audio track of a video, and files whose end libsndfile doesn't
    know (see `_Libsndfile.knows_end`).

    Args:
        path: path of the file.

    Raises:
        Undecodable: there is no such file, it has no sound, or no decoder can read it.
        UserError: the file is damaged SPHERE.
    """
    if is_member(str(path)) and not Path(path).exists():
        return _by_content(read_member(str(path)))
    if is_sphere(path):
        return _Sphere(path)
    return _by_content(str(path))


def _by_content(source: str | io.BytesIO) -> AudioFile:
    try:
        file = _Libsndfile(source)
    except Undecodable:
        return _FFmpeg(source)
    if file.knows_end(source):
        return file
    file.close()
    return _FFmpeg(source)


def check_rate(rate: int, path: str | Path) -> None:
    """Raise UserError if a sample rate is outside `SAMPLE_RATES`."""
    low, high = SAMPLE_RATES
    if not low <= rate <= high:
        raise UserError(f"{path}: expected a sample rate of {low} to {high} Hz, found {rate} Hz")


def checked_samples(samples: Samples, source: str, first: int = 0) -> Samples:
    """Return the samples, [samples] or [samples, channels], unchanged.

    Args:
        samples: samples to check.
        source: file or utterance, for messages.
        first: index of the first sample in its file, for messages.

    Raises:
        UserError: there are no samples, or one is not finite.
    """
    if samples.size == 0:
        raise UserError(f"{source}: no samples")
    # The sum needs no memory, and is finite unless a sample isn't (or is absurdly large).
    if not np.isfinite(samples.sum(dtype=np.float64)):
        bad = ~np.isfinite(samples)
        if bad.any():
            place = first + int(np.flatnonzero(bad.reshape(len(samples), -1).any(axis=1))[0])
            raise UserError(f"{source}: sample {place} is not finite")
    return samples


def is_silent(samples: Samples) -> bool:
    """Return whether all samples are below −80 dB of full scale."""
    return bool(samples.max() < SILENT_PEAK and samples.min() > -SILENT_PEAK)


class _Libsndfile(AudioFile):
    def __init__(self, source: str | io.BytesIO) -> None:
        try:
            self._file = soundfile.SoundFile(source)
        # TypeError: soundfile expects a format for names that end in .raw
        except (soundfile.SoundFileError, ValueError, TypeError) as error:
            raise Undecodable(_reason(error)) from None
        super().__init__(self._file.samplerate, self._file.channels, self._file.frames)
        self.float_samples = self._file.subtype in ("FLOAT", "DOUBLE")

    def knows_end(self, source: str | io.BytesIO) -> bool:
        """Return whether the length is exact, not an estimate, and no further audio follows it in the file.

        libsndfile estimates the length of MP3 without a Xing header, also within wav, and doesn't know the
        length of FLAC and wav written to a pipe; see also `is_one_ogg_stream`.
        """
        if not 0 < self._file.frames < UNKNOWN:
            return False
        if self._file.subtype == "MPEG_LAYER_III":
            return self._file.format == "MP3" and _holds(states_mp3_length, source)
        return self._file.format != "OGG" or _holds(is_one_ogg_stream, source)

    def seek(self, sample: int) -> None:
        try:
            self._file.seek(sample)
        except soundfile.SoundFileError as error:
            raise Undecodable(_reason(error)) from None

    def read(self, samples: int | None = None) -> Samples:
        try:
            return self._file.read(-1 if samples is None else samples, "float32", always_2d=True)
        except soundfile.SoundFileError as error:
            raise Undecodable(_reason(error)) from None

    def close(self) -> None:
        self._file.close()


def _reason(error: Exception) -> str:
    """Return libsndfile's message without the name of the file."""
    return str(error).rpartition(": ")[2].rstrip(".")


def _holds(question: Callable[[BinaryIO, int], bool], source: str | io.BytesIO) -> bool:
    """Return the answer to a question about a file's content."""
    if isinstance(source, str):
        return _file_holds(question, source, file_state(source))
    return question(io.BytesIO(source.getbuffer()), source.getbuffer().nbytes)


# Half an hour of Ogg takes 18 ms, and the file is opened for each of its utterances.
@functools.lru_cache(maxsize=1024)
def _file_holds(question: Callable[[BinaryIO, int], bool], path: str, state: str) -> bool:
    with open(path, "rb") as file:
        return question(file, os.fstat(file.fileno()).st_size)


class _Sphere(AudioFile):
    """A SPHERE file; each read decodes compressed samples from the beginning."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._header, self._position = path, read_header(path), 0
        super().__init__(self._header.sample_rate, self._header.channels, self._header.samples)

    def seek(self, sample: int) -> None:
        if not 0 <= sample <= self._header.samples:
            raise Undecodable(f"no sample {sample}")
        self._position = sample

    def read(self, samples: int | None = None) -> Samples:
        audio = read_samples(self._path, self._header, self._position, samples)
        self._position += audio.shape[1]
        return audio.T

    def blocks(self, samples: int) -> Iterator[Samples]:
        yield self.read()

    def close(self) -> None:
        pass


class _FFmpeg(AudioFile):
    """The first audio track of a file, decoded from the beginning to find a sample.

    Sample numbers follow the time in a player: silence fills gaps, and the time before a track that starts
    after the others.

    Args:
        source: path or content.
    """

    def __init__(self, source: str | io.BytesIO) -> None:
        try:
            self._file = io.FileIO(source) if isinstance(source, str) else source
        except OSError as error:
            raise Undecodable(error.strerror) from error
        try:
            self._open()
        except Undecodable:
            self._file.close()
            raise

    def _open(self) -> None:
        import av  # takes 40 ms, and few files need it

        # PyAV also raises plain errors, and those of the open file if FFmpeg seeks before its start.
        self._broken = (av.FFmpegError, OSError, ValueError, TypeError, RuntimeError)
        self._file.seek(0)
        try:
            # FFmpeg gets an open file and no protocols: no playlist can lead to other files or the network.
            self._container: Any = av.open(self._file, options={"protocol_whitelist": "none"})
            stream = next(iter(self._container.streams.audio), None)
        except self._broken as error:
            raise Undecodable(getattr(error, "strerror", "") or " ".join(str(error).split())) from error
        if stream is None:
            raise Undecodable("no audio in this file")
        if stream.codec_context is None:
            raise Undecodable("audio of an unknown codec")
        if not (stream.rate and stream.codec_context.channels):
            raise Undecodable("no sample rate or channels")
        super().__init__(stream.rate, stream.codec_context.channels, None)
        self.float_samples = stream.codec_context.name.startswith("pcm_f")
        self._damage: Undecodable | None = None
        resampler = av.AudioResampler(format="fltp")
        parts = _parts(self._container, stream, resampler)
        self._parts = _without_gaps(parts, self._container, stream.rate, self.gaps)
        self._rest = np.zeros((self.channels, 0), dtype=np.float32)
        self._position = 0

    def seek(self, sample: int) -> None:
        if sample < self._position:
            self._container.close()
            self._open()
        while left := sample - self._position:
            if not len(self.read(min(left, self.rate))):
                raise Undecodable(f"no sample {sample}")

    def read(self, samples: int | None = None) -> Samples:
        parts, count = [self._rest] if self._rest.size else [], self._rest.shape[1]
        try:
            while not self._damage and (samples is None or count < samples):
                parts.append(next(self._parts))
                count += parts[-1].shape[1]
        except StopIteration:
            pass
        except (Undecodable, *self._broken) as error:
            self._damage = Undecodable(" ".join(str(error).split()))
        if self._damage and (samples is None or count < samples):
            self._rest = np.concatenate([self._rest[:, :0], *parts], axis=1)
            raise self._damage
        audio = np.concatenate(parts, axis=1) if count else self._rest
        taken = count if samples is None else min(samples, count)
        self._rest = audio[:, taken:]
        self._position += taken
        return audio[:, :taken].T

    def blocks(self, samples: int) -> Iterator[Samples]:
        try:
            yield from super().blocks(samples)
        except Undecodable:  # the samples before the damage come first
            if self._rest.size:
                yield self._rest.T
            raise

    def close(self) -> None:
        self._container.close()
        self._file.close()


def _without_gaps(
    parts: Iterator[tuple[Samples, float | None]], container: Any, rate: int, gaps: list[tuple[int, int]]
) -> Iterator[Samples]:
    """Yield the parts of a track, with silence where their times are ahead of the samples; see `GAP_S`.

    Where times go back, as in joined files, no sample is left out.

    Args:
        parts: [channels, samples] and the time of the first sample in seconds; None: unknown.
        container: container; its earliest track begins at 0 s in a player.
        rate: sample rate in Hz.
        gaps: list to which the gaps are appended; see `AudioFile`.
    """
    from av.format import Flags

    start_s = (container.start_time or 0) / 1e6
    starts_anew = container.format.flags & Flags.ts_discont.value
    longest_s = DISCONTINUITY_S if starts_anew else (container.duration or 1e6 * LONGEST_GAP_S) / 1e6
    position = 0
    for part, time_s in parts:
        gap_s = 0.0 if time_s is None else time_s - start_s - position / rate
        if GAP_S < gap_s <= longest_s:
            missing = round(gap_s * rate)
            gaps.append((position, missing))
            position += missing
            for first in range(0, missing, rate):  # in pieces, because a gap may be long
                yield np.zeros((len(part), min(rate, missing - first)), dtype=np.float32)
        position += part.shape[1]
        yield part


def _parts(container: Any, stream: Any, resampler: Any) -> Iterator[tuple[Samples, float | None]]:
    """Yield the decoded frames of a track, [channels, samples], with their times in seconds.

    Raises:
        Undecodable: an MP3 frame is shorter than its header says; FFmpeg would make up the rest.
    """
    codec = stream.codec_context
    for packet in container.demux(stream):
        if codec.name.startswith("mp3") and packet.size:
            content = bytes(packet)
            if tag := id3_bytes(content):  # the tag of a file that was appended to another
                content = content[tag:]
                packet = type(packet)(content)
            if len(content) < (stated := mp3_frame_bytes(content)):
                raise Undecodable(f"a frame of {stated} bytes has {len(content)}")
            if not content:
                continue
        for frame in codec.decode(packet):
            for part in resampler.resample(frame):
                yield part.to_ndarray().astype(np.float32), part.time
