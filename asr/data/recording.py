"""Read recordings of any length, sample rate and container in blocks, resampled and checked."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from asr.data.audio import notice_resampling
from asr.data.facts import check_complete, check_rate, checked, read_blocks
from asr.data.sphere import is_sphere, read_header, read_sphere
from asr.errors import UserError
from asr.files import kind_of

log = logging.getLogger(__name__)

CHANNELS = ("mix", "separate")
BLOCK_S = 30
CLIPPED_LEVEL = 0.999
CLIPPED_SHARE = 1e-3  # share of samples above which clipping is reported
SILENT_PEAK = 1e-4  # −80 dB of full scale

Samples = NDArray[np.float32]


def read_recording(path: Path, sample_rate: int, channels: str = "mix") -> list[Samples]:
    """Return the channels of an audio file that libsndfile or FFmpeg can read.

    The container is detected from the content, not from the file name; from a video the first audio track
    is read. Clipped, damaged and truncated files are reported in warnings.

    Args:
        path: path of a file: wav, flac, mp3, ogg, SPHERE, m4a, mp4, mkv, …
        sample_rate: target sample rate in Hz.
        channels: `mix` averages the channels, `separate` keeps them.

    Returns:
        [samples] float32 for each channel; a single one with `mix`.

    Raises:
        UserError: the file is missing, empty or not audio, or has samples that are not finite.
    """
    if channels not in CHANNELS:
        raise UserError(f"channels={channels!r}: expected one of {CHANNELS}")
    rate, blocks = _open(path)
    check_rate(rate, path)
    clipped = total = 0

    def checked_blocks() -> Iterator[Samples]:
        nonlocal clipped, total
        for block in _readable(blocks, rate, path):
            if not total and block.shape[1] > 1 and channels == "mix":
                log.warning("%s: %d channels are averaged to one", path, block.shape[1])
            clipped += int((np.abs(block) >= CLIPPED_LEVEL).any(axis=1).sum())
            total += len(block)
            samples = block.mean(axis=1, keepdims=True) if channels == "mix" else block
            yield np.ascontiguousarray(samples.T)

    if rate != sample_rate:
        notice_resampling(rate, sample_rate)
    parts = list(resampled(checked_blocks(), rate, sample_rate))
    if not total:
        raise UserError(f"{path}: no samples")
    if clipped > CLIPPED_SHARE * total:
        log.warning("%s: clipped: %.1f %% of the samples are at full scale", path, 100 * clipped / total)
    recording = np.concatenate(parts, axis=1)
    parts.clear()
    return [checked(channel, str(path)) for channel in recording]


def is_silent(samples: Samples) -> bool:
    """Return whether all [samples] are below −80 dB of full scale."""
    return bool(samples.max() < SILENT_PEAK and samples.min() > -SILENT_PEAK)


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


def _open(path: Path) -> tuple[int, Iterator[Samples]]:
    """Return the sample rate in Hz and the samples in blocks [samples, channels]."""
    if not path.is_file():
        found = f"expected an audio file, found a {kind_of(path)}" if path.exists() else "no such file"
        raise UserError(f"{path}: {found}")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: empty file")
    if is_sphere(path):
        return read_header(path).sample_rate, iter([np.ascontiguousarray(read_sphere(path).T)])
    try:
        file = soundfile.SoundFile(path)
    except (soundfile.LibsndfileError, TypeError):  # TypeError: soundfile wants a format for names in .raw
        return _open_with_ffmpeg(path)
    try:
        check_complete(path)  # libsndfile doesn't
    except UserError as error:
        log.warning("%s", error)
    return file.samplerate, read_blocks(file, BLOCK_S * file.samplerate)


def _open_with_ffmpeg(path: Path) -> tuple[int, Iterator[Samples]]:
    import av

    try:
        container = av.open(str(path))
        stream = next(iter(container.streams.audio), None)
    except av.FFmpegError as error:
        raise UserError(f"{path}: not a readable audio file ({error.strerror})") from error
    if stream is None:
        raise UserError(f"{path}: no audio in this file")

    def blocks() -> Iterator[Samples]:
        resampler = av.AudioResampler(format="fltp")
        collected: list[Samples] = []
        with container:
            for frame in container.decode(stream):
                collected += [part.to_ndarray().astype(np.float32) for part in resampler.resample(frame)]
                if sum(part.shape[1] for part in collected) >= BLOCK_S * stream.rate:
                    yield np.concatenate(collected, axis=1).T
                    collected.clear()
        if collected:
            yield np.concatenate(collected, axis=1).T

    return stream.rate, blocks()


def _readable(blocks: Iterator[Samples], rate: int, path: Path) -> Iterator[Samples]:
    """Yield blocks up to the first that can't be decoded, and warn about its position."""
    import av

    samples = 0
    try:
        for block in blocks:
            samples += len(block)
            if len(block):
                yield block
    except (soundfile.LibsndfileError, av.FFmpegError) as error:
        reason = " ".join(str(error).split())
        if not samples:
            raise UserError(f"{path}: not a readable audio file ({reason})") from error
        log.warning("%s: damaged after %.1f s (%s): the rest is skipped", path, samples / rate, reason)
