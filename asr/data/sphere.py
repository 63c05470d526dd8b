"""Reads the header and samples of NIST SPHERE files, plain or with embedded shorten compression.

libsndfile reads plain samples (linear or µ-law), FFmpeg 16-bit samples compressed by shorten. Compressed
µ-law is read by the program sph2pipe if it is installed, else by the slower `asr.data.shorten`.
"""

import io
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from asr.console import counted
from asr.data import shorten
from asr.errors import UserError
from asr.files import require_file

MAGIC = b"NIST_1A\n"


@dataclass(frozen=True)
class SphereHeader:
    """Header of a SPHERE file.

    Attributes:
        length: length of the header in bytes.
        samples: number of samples per channel.
        sample_rate: sample rate in Hz.
        channels: number of interleaved channels.
        sample_bytes: size of an uncompressed sample in bytes.
        coding: sample coding without the compression: `pcm`, `ulaw`, …
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
        """Whether the samples are compressed by shorten."""
        return "shorten" in self.compression


def is_sphere(path: str | Path) -> bool:
    """Return whether a file starts with the magic number of SPHERE."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: str | Path) -> SphereHeader:
    """Read and check the header of a SPHERE file.

    The size of an uncompressed file, or the first bytes of compressed samples, are checked, too; nothing is
    decoded.

    Raises:
        UserError: the file is missing, is not SPHERE, lacks a field, or is shorter than its header states.
    """
    try:
        require_file(path, "a SPHERE file", "missing_audio")
        with open(path, "rb") as file:
            raw = file.read(1024)
            size = _header_size(raw, path)
            raw += file.read(size - len(raw) if size > len(raw) else 0)
            first = (raw[size:] + file.read(len(shorten.MAGIC)))[: len(shorten.MAGIC)]
            file_bytes = file.seek(0, io.SEEK_END)
    except OSError as error:
        raise UserError(f"{path}: the SPHERE file can't be read ({error.strerror})") from None
    header = _parse(raw[:size], path)
    if header.shortened and first != shorten.MAGIC:
        raise UserError(f"{path}: expected {header.compression} after the SPHERE header, found {first!r}")
    expected = header.length + header.samples * header.channels * header.sample_bytes
    if not header.compression and file_bytes < expected:
        raise UserError(
            f"{path}: expected {expected} bytes for {header.samples} samples, found {file_bytes} "
            "(a truncated file?)",
            "truncated_audio",
        )
    return header


def read_samples(
    path: str | Path, header: SphereHeader, start: int = 0, samples: int | None = None
) -> NDArray[np.float32]:
    """Read samples of all channels.

    Args:
        path: path of a SPHERE file.
        header: header of the file.
        start: index of the first sample, 0 … `header.samples`.
        samples: number of samples; None, or a larger number than are left: to the end.

    Returns:
        [channels, samples] float32 in −1 … 1: 16-bit integers divided by 32768.

    Raises:
        UserError: the data are truncated, or their coding is not supported.
    """
    left = header.samples - start
    wanted = left if samples is None else min(samples, left)
    if header.shortened:
        decoder = _decode_with_ffmpeg if header.coding == "pcm" else _decode_mulaw
        audio = decoder(path, header, start + wanted)[:, start:]
    else:
        audio = _read_with_libsndfile(path, start, wanted)
    if audio.shape != (header.channels, wanted):
        raise UserError(
            f"{path}: expected {header.samples} samples in {counted(header.channels, 'channel')}, "
            f"the data end after {start + audio.shape[1]} (a truncated file?)",
            "truncated_audio",
        )
    return audio


def _header_size(raw: bytes, path: str | Path) -> int:
    if not raw.startswith(MAGIC):
        raise UserError(f"{path}: expected a SPHERE header (NIST_1A), found {raw[:8]!r}")
    size = raw[len(MAGIC) :].split(b"\n", 1)[0].strip()
    if not size.isdigit() or not 16 <= int(size) <= 1 << 20:
        raise UserError(f"{path}: expected the length of the SPHERE header on line 2, found {size[:20]!r}")
    return int(size)


def _parse(raw: bytes, path: str | Path) -> SphereHeader:
    text, end, _ = raw.decode("latin-1").partition("\nend_head")
    if not end:
        raise UserError(f"{path}: expected `end_head` at the end of the SPHERE header, found none")
    fields: dict[str, str] = {}
    for line in text.split("\n")[2:]:
        name, _, typed = line.strip().partition(" ")
        kind, _, value = typed.strip().partition(" ")
        if not name or name.startswith(";"):
            continue
        if not kind.startswith(("-i", "-r", "-s")):
            raise UserError(f"{path}: expected `name -i value` in the SPHERE header, found {line[:40]!r}")
        fields[name] = value.strip()
    counts = []
    for name in ["sample_count", "sample_rate", "channel_count", "sample_n_bytes"]:
        value = fields.get(name, "nothing")
        if not value.isdigit() or int(value) == 0:
            raise UserError(f"{path}: expected {name} in the SPHERE header to be at least 1, found {value}")
        counts.append(int(value))
    coding, _, compression = fields.get("sample_coding", "pcm").partition(",")
    samples, sample_rate, channels, sample_bytes = counts
    return SphereHeader(len(raw), samples, sample_rate, channels, sample_bytes, coding, compression)


def _read_with_libsndfile(path: str | Path, start: int, samples: int) -> NDArray[np.float32]:
    try:
        audio, _ = soundfile.read(path, frames=samples, start=start, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise UserError(f"{path}: libsndfile can't read this SPHERE file ({error})") from None
    return audio.T


def _decode_with_ffmpeg(path: str | Path, header: SphereHeader, samples: int) -> NDArray[np.float32]:
    """Return the first `samples` samples of each channel, or fewer if the data end or are damaged earlier."""
    import av

    blocks = []
    decoded = 0
    try:
        # Of a path, FFmpeg would take what is before a colon as a protocol.
        with open(path, "rb") as file, av.open(file, "r", format="nistsphere") as container:
            for frame in container.decode(audio=0):
                blocks.append(frame.to_ndarray())  # [channels, samples]: shorten's frames are planar
                decoded += frame.samples
                if decoded >= samples:
                    break
    except (av.FFmpegError, IndexError):
        pass  # the caller reports the number of decoded samples
    if not blocks:
        return np.zeros((header.channels, 0), dtype=np.float32)
    return np.concatenate(blocks, axis=1)[:, :samples].astype(np.float32) / np.float32(32768)


def _decode_mulaw(path: str | Path, header: SphereHeader, samples: int) -> NDArray[np.float32]:
    """Return the first `samples` samples of each channel of compressed µ-law, or fewer if they end early."""
    if header.coding not in ("ulaw", "mu-law"):
        raise UserError(
            f"{path}: expected samples coded as pcm or ulaw, found {header.coding},{header.compression}"
        )
    if (program := shutil.which("sph2pipe")) is not None:
        return _decode_with_sph2pipe(program, path, samples)
    try:
        codes = shorten.decode(Path(path).read_bytes()[header.length :], samples, mulaw=True)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return shorten.mulaw_samples(codes).astype(np.float32) / np.float32(32768)


def _decode_with_sph2pipe(program: str, path: str | Path, samples: int) -> NDArray[np.float32]:
    command = [program, "-p", "-f", "wav", "-s", f"0:{samples}", os.path.abspath(path)]
    run = subprocess.run(command, capture_output=True)
    try:
        audio, _ = soundfile.read(io.BytesIO(run.stdout), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError:
        reason = (run.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"{path}: sph2pipe can't read it ({reason})") from None
    return audio.T
