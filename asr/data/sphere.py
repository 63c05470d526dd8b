"""NIST SPHERE files: their header, and their samples, plain or with embedded shorten compression.

Plain samples (linear or µ-law) are read by libsndfile, 16-bit samples compressed by shorten by FFmpeg,
compressed µ-law by the program sph2pipe where it is installed, else by ours, which is slower.
"""

import io
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from lhotse import AudioSource, Recording
from lhotse.audio.backend import AudioBackend
from numpy.typing import NDArray

from asr.data import shorten
from asr.errors import UserError

MAGIC = b"NIST_1A\n"
SUFFIXES = (".wv1", ".wv2", ".sph")


@dataclass(frozen=True)
class SphereHeader:
    """What stands before the samples.

    Attributes:
        length: of the header in bytes.
        samples: of each channel.
        sample_rate: in Hz.
        channels: interleaved.
        sample_bytes: bytes of an uncompressed sample.
        coding: `pcm`, `ulaw`, … without the compression.
        compression: e.g. `embedded-shorten-v2.00`; empty: none.
    """

    length: int
    samples: int
    sample_rate: int
    channels: int
    sample_bytes: int
    coding: str
    compression: str

    @property
    def shortened(self) -> bool:
        """Whether shorten compressed the samples."""
        return "shorten" in self.compression


def is_sphere(path: str | Path) -> bool:
    """Say whether a file begins as SPHERE files do."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: str | Path) -> SphereHeader:
    """Read and check the header of a SPHERE file.

    The samples are checked as far as that goes without decoding: uncompressed ones by the length of the
    file, compressed ones by their first bytes.

    Raises:
        UserError: the file is missing, no SPHERE file, lacks a field, or is shorter than its header says.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(1024)
            size = _header_size(raw, path)
            raw += file.read(size - len(raw) if size > len(raw) else 0)
            first = (raw[size:] + file.read(len(shorten.MAGIC)))[: len(shorten.MAGIC)]
            file_bytes = file.seek(0, io.SEEK_END)
    except FileNotFoundError:
        raise UserError(f"{path}: expected a SPHERE file, found no such file") from None
    except OSError as error:
        raise UserError(f"{path}: the SPHERE file can't be read ({error.strerror})") from None
    header = _parse(raw[:size], path)
    if header.shortened and first != shorten.MAGIC:
        raise UserError(f"{path}: expected {header.compression} after the SPHERE header, found {first!r}")
    expected = header.length + header.samples * header.channels * header.sample_bytes
    if not header.compression and file_bytes < expected:
        raise UserError(
            f"{path}: expected {expected} bytes for {header.samples} samples, found {file_bytes} "
            "(a truncated file?)"
        )
    return header


def read_sphere(path: str | Path, start: int = 0, samples: int | None = None) -> NDArray[np.float32]:
    """Read samples of all channels.

    Args:
        path: a SPHERE file.
        start: first sample.
        samples: how many; None: to the end.

    Returns:
        [channels, samples] float32 in −1 … 1: integers divided by 32768.

    Raises:
        UserError: the header is corrupt, the data truncated, or no decoder of this compression installed.
    """
    header = read_header(path)
    wanted = header.samples - start if samples is None else samples
    if start < 0 or wanted < 0 or start + wanted > header.samples:
        raise UserError(
            f"{path}: samples {start} to {start + wanted} are wanted, it has {header.samples} in each channel"
        )
    if header.shortened:
        decoder = _decode_with_ffmpeg if header.coding == "pcm" else _decode_mulaw
        audio = decoder(path, header, start + wanted)[:, start:]
    else:
        audio = _read_with_libsndfile(path, start, wanted)
    if audio.shape != (header.channels, wanted):
        raise UserError(
            f"{path}: expected {header.samples} samples in {header.channels} channel(s), the data end after "
            f"{start + audio.shape[1]} (a truncated file?)"
        )
    return audio


def sphere_recording(path: str | Path, name: str) -> Recording:
    """Return lhotse's description of a SPHERE file from its header alone; nothing is decoded.

    Raises:
        UserError: see `read_header`.
    """
    header = read_header(path)
    return Recording(
        id=name,
        sources=[AudioSource("file", list(range(header.channels)), str(path))],
        sampling_rate=header.sample_rate,
        num_samples=header.samples,
        duration=header.samples / header.sample_rate,
    )


class SphereBackend(AudioBackend):
    """What lhotse reads `.wv1`, `.wv2` and `.sph` files with."""

    def handles_special_case(self, path_or_fd: Any) -> bool:
        """Claim the files by their name."""
        return isinstance(path_or_fd, str | Path) and str(path_or_fd).lower().endswith(SUFFIXES)

    def is_applicable(self, path_or_fd: Any) -> bool:
        """Refuse all others."""
        return self.handles_special_case(path_or_fd)

    def read_audio(
        self,
        path_or_fd: Any,
        offset: float = 0.0,
        duration: float | None = None,
        force_opus_sampling_rate: int | None = None,
    ) -> tuple[NDArray[np.float32], int]:
        """Return [channels, samples] from `offset` on, `duration` seconds long, and the rate in Hz."""
        header = read_header(path_or_fd)
        start = round(offset * header.sample_rate)
        samples = None if duration is None else round(duration * header.sample_rate)
        if samples is not None and start + samples > header.samples >= start + samples - 1:
            samples = header.samples - start  # times are rounded in manifests
        return read_sphere(path_or_fd, start, samples), header.sample_rate


def _header_size(raw: bytes, path: str | Path) -> int:
    if not raw.startswith(MAGIC):
        raise UserError(f"{path}: expected a SPHERE header (NIST_1A), found {raw[:8]!r}")
    size = raw[len(MAGIC) :].split(b"\n", 1)[0].strip()
    if not size.isdigit() or not 16 <= int(size) <= 1 << 20:
        raise UserError(f"{path}: expected the length of the SPHERE header in line 2, found {size[:20]!r}")
    return int(size)


def _parse(raw: bytes, path: str | Path) -> SphereHeader:
    text, end, _ = raw.decode("latin-1").partition("\nend_head")
    if not end:
        raise UserError(f"{path}: expected `end_head` at the end of the SPHERE header, found none in it")
    fields: dict[str, str] = {}
    for line in text.split("\n")[2:]:
        name, _, typed = line.strip().partition(" ")
        kind, _, value = typed.strip().partition(" ")
        if not name or name.startswith(";"):
            continue
        if not kind.startswith(("-i", "-r", "-s")):
            raise UserError(f"{path}: expected `name -i value` in the SPHERE header, found {line[:40]!r}")
        fields[name] = value.strip()
    coding, _, compression = fields.get("sample_coding", "pcm").partition(",")
    return SphereHeader(
        length=len(raw),
        samples=_positive(fields, "sample_count", path),
        sample_rate=_positive(fields, "sample_rate", path),
        channels=_positive(fields, "channel_count", path),
        sample_bytes=_positive(fields, "sample_n_bytes", path),
        coding=coding,
        compression=compression,
    )


def _positive(fields: dict[str, str], name: str, path: str | Path) -> int:
    value = fields.get(name, "nothing")
    if not value.isdigit() or int(value) == 0:
        raise UserError(f"{path}: expected {name} in the SPHERE header to be at least 1, found {value}")
    return int(value)


def _read_with_libsndfile(path: str | Path, start: int, samples: int) -> NDArray[np.float32]:
    try:
        audio, _ = soundfile.read(path, frames=samples, start=start, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise UserError(f"{path}: libsndfile can't read this SPHERE file ({error})") from None
    return audio.T


def _decode_with_ffmpeg(path: str | Path, header: SphereHeader, samples: int) -> NDArray[np.float32]:
    """The first `samples` samples of each channel, fewer where the data end or break off before."""
    import av

    blocks = []
    decoded = 0
    try:
        with av.open(str(path), format="nistsphere") as container:
            for frame in container.decode(audio=0):
                blocks.append(frame.to_ndarray())  # [channels, samples]: shorten's frames are planar
                decoded += frame.samples
                if decoded >= samples:
                    break
    except (av.FFmpegError, IndexError):
        pass  # what is missing is reported with its count
    if not blocks:
        return np.zeros((header.channels, 0), dtype=np.float32)
    return np.concatenate(blocks, axis=1)[:, :samples].astype(np.float32) / np.float32(32768)


def _decode_mulaw(path: str | Path, header: SphereHeader, samples: int) -> NDArray[np.float32]:
    """As `_decode_with_ffmpeg`, of µ-law."""
    if header.coding not in ("ulaw", "mu-law"):
        raise UserError(
            f"{path}: expected samples to be pcm or ulaw, found {header.coding},{header.compression}"
        )
    if (program := shutil.which("sph2pipe")) is not None:
        return _decode_with_sph2pipe(program, path, samples)
    try:
        codes = shorten.decode(Path(path).read_bytes()[header.length :], samples, mulaw=True)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return shorten.mulaw_samples(codes).astype(np.float32) / np.float32(32768)


def _decode_with_sph2pipe(program: str, path: str | Path, samples: int) -> NDArray[np.float32]:
    command = [program, "-p", "-f", "wav", "-s", f"0:{samples}", str(path)]
    run = subprocess.run(command, capture_output=True)
    try:
        audio, _ = soundfile.read(io.BytesIO(run.stdout), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError:
        reason = (run.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"{path}: sph2pipe can't read it ({reason})") from None
    return audio.T
