"""One interface for sources of audio: files, streams, samples in memory, utterances of a manifest."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from lhotse.cut import MonoCut
from numpy.typing import NDArray

from asr.data.audio import load_cut
from asr.data.audio_file import Samples
from asr.data.recording import channels_of, read_recording, read_stream
from asr.errors import UserError

Audio = str | Path | NDArray[Any] | torch.Tensor | IO[bytes]


class Source(Protocol):
    """Audio that has not been read."""

    @property
    def name(self) -> str:
        """Name in messages."""

    def read(self, sample_rate: int) -> list[Samples]:
        """Return each channel, [samples] at `sample_rate` in Hz; raise UserError if it can't be read."""


@dataclass(frozen=True)
class FileSource:
    """An audio file.

    Attributes:
        path: path of the file; its size decides which files are read together.
        channels: `mix` or `separate`.
    """

    path: Path
    channels: str = "mix"

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def size(self) -> int:
        """Size in bytes; 0 if the file doesn't exist."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def read(self, sample_rate: int) -> list[Samples]:
        """Decode and resample the file."""
        return read_recording(self.path, sample_rate, self.channels)


@dataclass(frozen=True)
class StreamSource:
    """A file object opened in binary mode, of unknown size."""

    stream: IO[bytes]
    name: str
    channels: str = "mix"
    size: None = None

    def read(self, sample_rate: int) -> list[Samples]:
        """Read the stream to its end, decode and resample it."""
        return read_stream(self.stream, sample_rate, self.channels, self.name)


@dataclass(frozen=True)
class ArraySource:
    """Samples in memory: [samples] or [channels, samples], and their rate in Hz."""

    audio: NDArray[Any] | torch.Tensor
    rate: int
    name: str
    channels: str = "mix"

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.audio.nbytes

    def read(self, sample_rate: int) -> list[Samples]:
        """Check, scale and resample the samples."""
        return channels_of(self.audio, self.rate, sample_rate, self.channels, self.name)


@dataclass(frozen=True, slots=True)
class CutSource:
    """An utterance of a manifest; `cuts[index]` is parsed only when it is read."""

    cuts: Sequence[MonoCut]
    index: int

    @property
    def name(self) -> str:
        """`utterance` and its id."""
        return f"utterance {self.cuts[self.index].id}"

    def read(self, sample_rate: int) -> list[Samples]:
        """Read the cut's part of its recording."""
        return [load_cut(self.cuts[self.index], sample_rate)]


Recording = FileSource | StreamSource | ArraySource


def recordings(audio: Sequence[Audio], sample_rate: int | None, channels: str) -> list[Recording]:
    """Return the sources of recordings; unnamed recordings are numbered.

    Args:
        audio: paths, file objects opened in binary mode, or arrays or tensors.
        sample_rate: sample rate of the arrays and tensors in Hz.
        channels: `mix` or `separate`.

    Raises:
        UserError: audio of another type, or an array without its rate.
    """
    several = len(audio) > 1
    return [
        _recording(item, sample_rate, channels, f"recording {number}" if several else "recording")
        for number, item in enumerate(audio, start=1)
    ]


def _recording(audio: Audio, rate: int | None, channels: str, unnamed: str) -> Recording:
    if isinstance(audio, str | Path):
        return FileSource(Path(audio).expanduser(), channels)
    name = str(getattr(audio, "name", None) or unnamed)
    if isinstance(audio, io.IOBase) and (isinstance(audio, io.TextIOBase) or audio.closed):
        found = "a closed one" if audio.closed else "one in text mode"
        raise UserError(f"{name}: expected a file object opened in binary mode, found {found}")
    if isinstance(audio, torch.Tensor) and (audio.layout != torch.strided or audio.is_meta):
        raise UserError(f"{name}: expected a dense tensor in memory, found {audio.layout} on {audio.device}")
    if isinstance(audio, np.ndarray | torch.Tensor):
        if rate is None:
            raise UserError(f"{name}: expected its sample_rate, found none")
        if isinstance(rate, bool) or not isinstance(rate, Real) or rate % 1:  # NaN and infinity have a rest
            raise UserError(f"{name}: expected a whole number as sample_rate, found {rate!r}")
        return ArraySource(audio, int(rate), name, channels)
    if hasattr(audio, "read"):
        return StreamSource(audio, name, channels)
    raise UserError(
        f"{name}: expected a path, an array or tensor with its rate, or a file object, "
        f"found {type(audio).__name__}"
    )
