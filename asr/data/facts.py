"""Check audio files: length, sample rate and channels as in the header, and the samples behind it."""

import struct
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from asr.data.sphere import SUFFIXES, is_sphere, read_header, read_sphere
from asr.errors import UserError
from asr.files import require_file

VERIFY_HELP = "decode every file to check that it is complete; false: read headers only"
SAMPLE_RATES = (4_000, 384_000)  # Hz; a rate outside is taken for a damaged header
BLOCK_SAMPLES = 1 << 20


def check_rate(rate: int, path: str | Path) -> None:
    """Raise UserError if a sample rate is outside `SAMPLE_RATES`."""
    low, high = SAMPLE_RATES
    if not low <= rate <= high:
        raise UserError(f"{path}: expected a sample rate of {low} to {high} Hz, found {rate} Hz")


def header_facts(path: str | Path) -> tuple[int, int, int]:
    """Return (samples per channel, sample rate in Hz, channels) from an audio file's header.

    Raises:
        UserError: the file is missing, empty, no regular file, or neither SPHERE nor readable by libsndfile;
            its sample rate is absurd; or it is a wav or plain SPHERE file shorter than its header states.
    """
    if not require_file(path, "an audio file", "missing_audio"):
        raise UserError(f"{path}: expected audio, found an empty file", "truncated_audio")
    if str(path).lower().endswith(SUFFIXES) and is_sphere(path):
        header = read_header(path)
        facts = header.samples, header.sample_rate, header.channels
    else:
        try:
            info = soundfile.info(str(path))
        # TypeError: soundfile wants a format for .raw
        except (soundfile.LibsndfileError, TypeError) as error:
            reason = str(error).rpartition(": ")[2].rstrip(".")
            raise UserError(
                f"{path}: expected an audio file, found one that can't be read ({reason})"
            ) from None
        facts = info.frames, info.samplerate, info.channels
    samples, rate, _ = facts
    check_rate(rate, path)
    if samples <= 0:
        raise UserError(f"{path}: expected audio, found no samples", "truncated_audio")
    found, promised = Path(path).stat().st_size, riff_bytes(path)
    if found + 1 < promised:  # a padding byte may be missing
        raise UserError(
            f"{path}: expected {promised} bytes, as its header says, found {found} (a truncated file?)",
            "truncated_audio",
        )
    return facts


def audio_facts(path: str | Path) -> tuple[int, int, int]:
    """Return what `header_facts` does, after decoding the whole file.

    Raises:
        UserError: as in `header_facts`; or the samples can't be decoded, are not finite, or are not as many
            as the header states.
    """
    samples, rate, channels = facts = header_facts(path)
    if str(path).lower().endswith(SUFFIXES) and is_sphere(path):
        read_sphere(path)
        return facts
    found = 0
    try:
        for block in soundfile.blocks(str(path), BLOCK_SAMPLES // channels, dtype="float32", always_2d=True):
            checked(block, str(path), found)
            found += len(block)
    except soundfile.LibsndfileError as error:
        reason = str(error).rpartition(": ")[2].rstrip(".")
        raise UserError(f"{path}: damaged after {found / rate:.1f} s ({reason})") from None
    if found != samples:
        raise UserError(
            f"{path}: expected {samples} samples, as its header says, found {found} (a truncated file?)",
            "truncated_audio",
        )
    return facts


def checked(samples: NDArray[np.float32], source: str, first: int = 0) -> NDArray[np.float32]:
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


def riff_bytes(path: str | Path) -> int:
    """Return the length that the header of a wav file states, in bytes; 0 if it states none."""
    with open(path, "rb") as file:
        head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return 0
    stated = struct.unpack("<I", head[4:8])[0]
    if stated in (0, 0xFFFFFFFF) or stated >= 0x7FFFF000:  # streamed: the length was not known
        return 0
    return int(stated) + 8
