"""Audio files of all formats behind one reader: open, seek, read."""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from asr.data.shar import is_member, read_member
from asr.data.sphere import is_sphere, read_header, read_samples
from asr.errors import UserError

SAMPLE_RATES = (4_000, 384_000)  # Hz; a rate outside is taken for a damaged header

Samples = NDArray[np.float32]


class Undecodable(Exception):
    """Data that a decoder can't read, or a sample that it can't find; the message is its reason."""


class AudioFile(ABC):
    """An open audio file with a reading position; as a context manager, it closes itself.

    Args:
        rate: sample rate in Hz.
        channels: number of channels.
        samples: samples per channel as the header states them; None: known only at the end. libsndfile
            only estimates it for some compressed files, so rely on what `read` returns.
    """

    def __init__(self, rate: int, channels: int, samples: int | None) -> None:
        self.rate, self.channels, self.samples = rate, channels, samples

    def __enter__(self) -> "AudioFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def seek(self, sample: int) -> None:
        """Go to a sample, counted from 0; raise `Undecodable` if it can't be found.

        In MP3, Ogg and Opus, the first samples after a seek may differ from those of a full decode, because
        libsndfile doesn't decode everything before them.
        """

    @abstractmethod
    def read(self, samples: int | None = None) -> Samples:
        """Return the next samples, or all that are left, and move past them.

        Returns:
            [samples, channels] in −1 … 1; fewer than asked for only at the end.

        Raises:
            Undecodable: the data are damaged.
            UserError: a SPHERE file ends before its header says, or before the samples asked for.
        """

    def blocks(self, samples: int) -> Iterator[Samples]:
        """Yield the rest in blocks of at most `samples`, SPHERE in one block; errors are those of `read`."""
        # Not `SoundFile.blocks`, which pads a truncated file with whatever is in memory.
        while len(block := self.read(samples)):
            yield block

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


def open_audio(path: str | Path, *, ffmpeg: bool = True) -> AudioFile:
    """Open an audio file, or one in an archive (see `asr.data.shar`); its content decides the decoder.

    SPHERE comes first: its header states the exact length, which libsndfile silently lowers if the file
    is truncated, and its compressed samples need other decoders. libsndfile comes before FFmpeg because it
    finds a sample of wav, FLAC, Ogg and MP3 without decoding all samples before it. FFmpeg reads the rest,
    including the first audio track of a video.

    Args:
        path: path of the file.
        ffmpeg: false: only files whose header states their length.

    Raises:
        Undecodable: there is no such file, or no decoder can read it.
        UserError: a damaged SPHERE file, a video without sound, or an unknown codec.
    """
    if is_member(str(path)) and not Path(path).exists():
        return _Libsndfile(read_member(str(path)))
    if is_sphere(path):
        return _Sphere(path)
    try:
        return _Libsndfile(str(path))
    except Undecodable:
        if not ffmpeg:
            raise
    return _FFmpeg(path)


def check_rate(rate: int, path: str | Path) -> None:
    """Raise UserError if a sample rate is outside `SAMPLE_RATES`."""
    low, high = SAMPLE_RATES
    if not low <= rate <= high:
        raise UserError(f"{path}: expected a sample rate of {low} to {high} Hz, found {rate} Hz")


def checked_samples(samples: Samples, source: str, first: int = 0) -> Samples:
    """Return the samples, [samples] or [samples, channels], unchanged.

    Args:
        samples: samples to check.
        source: file or utterance, with which a message begins.
        first: number of the first sample in its file, for the message.

    Raises:
        UserError: there are no samples, or one is not finite.
    """
    if samples.size == 0:
        raise UserError(f"{source}: no samples")
    # The sum is finite unless a sample is not (or is absurdly large), and takes no memory.
    if not np.isfinite(samples.sum(dtype=np.float64)):
        bad = ~np.isfinite(samples)
        if bad.any():
            place = first + int(np.flatnonzero(bad.reshape(len(samples), -1).any(axis=1))[0])
            raise UserError(f"{source}: sample {place} is not finite")
    return samples


class _Libsndfile(AudioFile):
    def __init__(self, source: str | io.BytesIO) -> None:
        try:
            self._file = soundfile.SoundFile(source)
        # TypeError: soundfile wants a format for names in .raw
        except (soundfile.SoundFileError, ValueError, TypeError) as error:
            raise Undecodable(_reason(error)) from None
        super().__init__(self._file.samplerate, self._file.channels, self._file.frames)

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
    """What libsndfile says, without the name of the file."""
    return str(error).rpartition(": ")[2].rstrip(".")


class _Sphere(AudioFile):
    """A SPHERE file; each read decodes compressed samples from the beginning."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._header, self._position = path, read_header(path), 0
        super().__init__(self._header.sample_rate, self._header.channels, self._header.samples)

    def seek(self, sample: int) -> None:
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
    """The first audio track of a file, decoded from the beginning to find a sample."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        import av  # takes 40 ms, and few files need it

        self._broken = (av.FFmpegError, ValueError, TypeError, RuntimeError)  # PyAV raises plain errors, too
        try:
            self._container: Any = av.open(str(self._path))
            stream = next(iter(self._container.streams.audio), None)
        except self._broken as error:
            raise Undecodable(getattr(error, "strerror", "") or " ".join(str(error).split())) from error
        if stream is None:
            raise UserError(f"{self._path}: no audio in this file")
        if stream.codec_context is None:
            raise UserError(f"{self._path}: audio of an unknown codec")
        super().__init__(stream.rate, stream.codec_context.channels, None)
        self._parts = _parts(self._container, stream, av.AudioResampler(format="fltp"))
        self._rest = np.zeros((self.channels, 0), dtype=np.float32)
        self._position = 0

    def seek(self, sample: int) -> None:
        if sample < self._position:
            self.close()
            self._open()
        while left := sample - self._position:
            if not len(self.read(min(left, self.rate))):
                raise Undecodable(f"no sample {sample}")

    def read(self, samples: int | None = None) -> Samples:
        parts, count = [self._rest] if self._rest.size else [], self._rest.shape[1]
        try:
            while samples is None or count < samples:
                parts.append(next(self._parts))
                count += parts[-1].shape[1]
        except StopIteration:
            pass
        except self._broken as error:
            raise Undecodable(" ".join(str(error).split())) from error
        audio = np.concatenate(parts, axis=1) if count else self._rest
        taken = count if samples is None else min(samples, count)
        self._rest = audio[:, taken:]
        self._position += taken
        return audio[:, :taken].T

    def close(self) -> None:
        self._container.close()


def _parts(container: Any, stream: Any, resampler: Any) -> Iterator[Samples]:
    """Yield the decoded frames of a track, [channels, samples]."""
    for frame in container.decode(stream):
        for part in resampler.resample(frame):
            yield part.to_ndarray().astype(np.float32)
