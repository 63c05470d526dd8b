"""Audio from a pipe, block by block as it arrives."""

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from asr.errors import UserError

BLOCK_BYTES = 1 << 15  # maximum read at once; a pipe returns what it has
# FFmpeg starts once it knows the format; by default, it reads five seconds first.
LIVE = {"protocol_whitelist": "none", "analyzeduration": "1"}


def raw_blocks(pipe: IO[bytes]) -> Iterator[NDArray[np.int16]]:
    """Yield blocks of a pipe's samples: 16 bits, little-endian, one channel, no header."""
    rest = b""
    while content := _available(pipe, BLOCK_BYTES):
        content = rest + content
        whole = len(content) // 2 * 2
        rest = content[whole:]
        yield np.frombuffer(content[:whole], dtype="<i2").astype(np.int16)


def container_blocks(pipe: IO[bytes], name: str) -> tuple[int, Iterator[NDArray[np.float32]]]:
    """Return the sample rate of audio with a header, and its blocks; channels are averaged.

    Args:
        pipe: audio in a format that FFmpeg can read from front to back: WAV, MP3, FLAC, Ogg, Matroska, …
        name: name of the pipe, for messages.

    Raises:
        UserError: the data aren't audio, or can't be read from front to back, such as most MP4.
    """
    import av  # takes 40 ms

    broken = (av.FFmpegError, OSError, ValueError, TypeError, RuntimeError)
    try:
        container: Any = av.open(_Pipe(pipe), options=LIVE)
        stream = next(iter(container.streams.audio), None)
    except broken as error:
        raise UserError(
            f"{name}: expected audio with a header, such as WAV, or raw samples with rate=<Hz>, found neither"
        ) from error
    if stream is None or not stream.rate:
        raise UserError(f"{name}: no audio")

    def blocks() -> Iterator[NDArray[np.float32]]:
        resampler = av.AudioResampler(format="fltp")
        samples = 0
        try:
            for frame in container.decode(stream):
                for part in resampler.resample(frame):
                    samples += part.samples
                    yield part.to_ndarray().mean(axis=0, dtype=np.float32)
        except broken as error:
            raise UserError(
                f"{name}: damaged, or a format that can't be read from front to back ({error})"
            ) from error
        if not samples:
            raise UserError(f"{name}: no samples")

    return stream.rate, blocks()


class _Pipe:
    """A pipe for FFmpeg: `read` returns the bytes that have arrived, without waiting for more."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        return _available(self._pipe, size)


def _available(pipe: Any, size: int) -> bytes:
    content: bytes = pipe.read1(size) if hasattr(pipe, "read1") else pipe.read(size)
    return content
