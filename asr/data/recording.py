"""Reads recordings of any length, sample rate and container in blocks, resampled and checked."""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.data.audio import convert, notice_resampling
from asr.data.audio_file import (
    SILENT_PEAK,
    AudioFile,
    Samples,
    Undecodable,
    check_rate,
    checked_samples,
    is_silent,
    open_audio,
)
from asr.data.facts import check_complete
from asr.errors import UserError
from asr.files import kind_of, near_path

log = logging.getLogger(__name__)

CHANNELS = ("mix", "separate")
BLOCK_S = 30  # bounds the memory for samples at the file's rate and number of channels
AVERAGED = "%s: %d channels are averaged to one; for a call with a speaker on each: channels=separate"
NEARLY_CANCELLED = (
    "%s: the channels nearly cancel each other: their average has %.0f %% of the power of unrelated "
    "channels' average; channels=separate transcribes each"
)
CLIPPED_LEVEL = 0.999  # below 1: full scale is 0.99997 with 16 bits, and lossy codecs change it
CLIPPED_SHARE = 1e-3  # share of samples above which clipping is reported
CANCELLED = 0.2  # power of an average, relative to that of unrelated channels, below which it is reported


def read_recording(path: Path, sample_rate: int, channels: str = "mix", name: str = "") -> list[Samples]:
    """Return the channels of an audio file that libsndfile or FFmpeg can read.

    The container is detected from the content, not from the file name; from a video the first audio track
    is read. Clipped, damaged and truncated files are reported in warnings.

    Args:
        path: path of a file: wav, flac, mp3, ogg, SPHERE, m4a, mp4, mkv, …
        sample_rate: target sample rate in Hz.
        channels: `mix` averages the channels, `separate` keeps them.
        name: name of the recording in messages; empty: its path.

    Returns:
        [samples] float32 for each channel; a single one with `mix`.

    Raises:
        UserError: the file is missing, empty or not audio, or has samples that are not finite.
    """
    _check_channels(channels)
    name = name or str(path)
    if not path.is_file():
        found = f"a {kind_of(path)}" if path.exists() else f"no such file{near_path(path)}"
        raise UserError(f"{name}: expected an audio file, found {found}")
    if path.stat().st_size == 0:
        raise UserError(f"{name}: empty file")
    try:
        with open_audio(path) as file:
            return _channels(file, path, sample_rate, channels, name)
    except Undecodable as error:
        raise UserError(f"{name}: not a readable audio file ({error})") from error
    except UserError as error:
        raise UserError(str(error).replace(str(path), name), error.kind) from None


def _channels(file: AudioFile, path: Path, sample_rate: int, channels: str, name: str) -> list[Samples]:
    """Like `read_recording`, for an open file."""
    check_rate(file.rate, name)
    try:
        check_complete(path)
    except UserError as error:
        log.warning("%s", str(error).replace(str(path), name))
    clipped = total = 0
    peak = 0.0
    averaged = np.zeros(2)  # sums of squares, see `_check_average`

    def checked_blocks() -> Iterator[Samples]:
        nonlocal clipped, total, peak, averaged
        for block in _up_to_damage(file, name):
            if not total and block.shape[1] > 1 and channels == "mix":
                log.warning(AVERAGED, name, block.shape[1])
            clipped += int((np.abs(block) >= CLIPPED_LEVEL).any(axis=1).sum())
            total += len(block)
            peak = max(peak, float(np.abs(block).max()))
            samples = np.ascontiguousarray(block.T)
            if channels == "mix" and len(samples) > 1:
                samples, squares = _average(samples)
                averaged += squares
            yield samples

    if file.rate != sample_rate:
        notice_resampling([file.rate], sample_rate)
    parts = list(resampled(checked_blocks(), file.rate, sample_rate))
    if not total:
        raise UserError(f"{name}: no samples")
    # Stored floats beyond full scale show that nothing was clipped; decoded MP3 exceeds it even if clipped.
    if clipped > CLIPPED_SHARE * total and not (file.float_samples and peak > 1):
        log.warning("%s: clipped: %.1f %% of the samples are at full scale", name, 100 * clipped / total)
    recording = np.concatenate(parts, axis=1)
    parts.clear()
    if averaged.any():
        _check_average(recording, averaged, peak, name)
    return [checked_samples(channel, name) for channel in recording]


def _average(samples: Samples) -> tuple[Samples, NDArray[np.float64]]:
    """Return the average of [channels, samples] as [1, samples], and two sums of squares.

    The first is over all channels, the second over their sum; they are equal for unrelated channels.
    """
    total = samples.sum(axis=0, keepdims=True)
    return total / np.float32(len(samples)), np.array([np.vdot(samples, samples), np.vdot(total, total)])


def _check_average(average: Samples, squares: NDArray[np.float64], peak: float, name: str) -> None:
    """Raise UserError if the average is silent although the channels aren't; warn if it nearly is."""
    if peak < SILENT_PEAK:
        return
    if is_silent(average):
        raise UserError(
            f"{name}: expected channels that can be averaged, found some that cancel each other: "
            "channels=separate"
        )
    if squares[1] < CANCELLED * squares[0]:
        log.warning(NEARLY_CANCELLED, name, 100 * squares[1] / squares[0])


def _up_to_damage(file: AudioFile, name: str) -> Iterator[Samples]:
    """Yield blocks of a file up to the first that can't be decoded, and warn about its position."""
    samples = 0
    try:
        for block in file.blocks(BLOCK_S * file.rate):
            samples += len(block)
            yield block
    except Undecodable as error:
        if not samples:
            raise
        log.warning("%s: damaged after %.1f s (%s): the rest is skipped", name, samples / file.rate, error)


def read_stream(stream: IO[bytes], sample_rate: int, channels: str = "mix", name: str = "") -> list[Samples]:
    """Return the channels of audio read from a file object opened in binary mode; see `read_recording`.

    The content goes through a temporary file, because some containers can't be read from front to back.
    """
    name = name or str(getattr(stream, "name", "file object"))
    with tempfile.NamedTemporaryFile(prefix="recording-") as copy:
        shutil.copyfileobj(stream, copy)
        copy.flush()
        return read_recording(Path(copy.name), sample_rate, channels, name)


def channels_of(
    audio: NDArray[Any] | Tensor, rate: int, sample_rate: int, channels: str = "mix", name: str = "array"
) -> list[Samples]:
    """Like `read_recording`, for samples in memory.

    Args:
        audio: [samples] or [channels, samples]; floats in −1 … 1, or integers of their type's full scale.
        rate: sample rate of `audio` in Hz.
        sample_rate: target sample rate in Hz.
        channels: `mix` averages the channels, `separate` keeps them.
        name: name of the recording, for messages.

    Raises:
        UserError: another shape or type, no samples, or samples that are not finite.
    """
    _check_channels(channels)
    check_rate(rate, name)
    samples = as_floats(audio, name)
    if channels == "mix" and len(samples) > 1:
        log.warning(AVERAGED, name, len(samples))
        peak = float(np.abs(samples).max(initial=0.0))
        samples, squares = _average(samples)
        if samples.size:
            _check_average(samples, squares, peak, name)
    return [
        checked_samples(convert(checked_samples(channel, name), rate, sample_rate), name)
        for channel in samples
    ]


def as_floats(audio: NDArray[Any] | Tensor, name: str) -> Samples:
    """Return samples in memory as float32, [channels, samples].

    Args:
        audio: [samples] or [channels, samples]; floats in −1 … 1, or integers of their type's full scale.
        name: name of the recording, for messages.

    Raises:
        UserError: another shape or type.
    """
    if isinstance(audio, torch.Tensor):
        audio = audio.detach().cpu()
        audio = (audio.float() if audio.dtype == torch.bfloat16 else audio).numpy()
    values = np.asarray(audio)
    if values.ndim not in (1, 2) or (values.ndim == 2 and values.shape[0] > values.shape[1]):
        raise UserError(
            f"{name}: expected [samples] or [channels, samples], found shape {list(values.shape)}"
        )
    if values.dtype.kind not in "fi":
        raise UserError(f"{name}: expected floats in −1 … 1 or signed integers, found {values.dtype}")
    scale = -float(np.iinfo(values.dtype).min) if values.dtype.kind == "i" else 1.0
    return np.atleast_2d(values).astype(np.float32) / np.float32(scale)


def _check_channels(channels: str) -> None:
    if channels not in CHANNELS:
        raise UserError(f"channels={channels!r}: expected one of {', '.join(CHANNELS)}")


def resampled(blocks: Iterator[Samples], rate: int, sample_rate: int) -> Iterator[Samples]:
    """Resample [channels, samples] block by block; the result equals resampling the whole.

    Args:
        blocks: blocks [channels, samples] of any lengths.
        rate: sample rate of the blocks in Hz.
        sample_rate: target sample rate in Hz.
    """
    if rate == sample_rate:
        yield from blocks
        return
    stream: soxr.ResampleStream | None = None
    for block in blocks:
        stream = stream or soxr.ResampleStream(rate, sample_rate, len(block), dtype="float32")
        yield stream.resample_chunk(np.ascontiguousarray(block.T)).T
    if stream is not None:
        yield stream.resample_chunk(np.empty((0, len(block)), np.float32), last=True).T
