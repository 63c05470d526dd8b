"""Load the waveform of an utterance: decode, check, resample to the model's rate."""

import functools
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from lhotse.audio.backend import (
    AudioBackend,
    CompositeAudioBackend,
    FfmpegSubprocessOpusBackend,
    LibsndfileBackend,
    Sph2pipeSubprocessBackend,
    get_default_audio_backend,
    set_current_audio_backend,
)
from lhotse.cut import MonoCut
from numpy.typing import NDArray

from asr.data.facts import checked, header_facts
from asr.data.shar import is_member, read_member
from asr.data.sphere import SUFFIXES, is_sphere, read_header, read_sphere
from asr.errors import UserError, in_words

log = logging.getLogger(__name__)
_WARNING = threading.Lock()


def load_cut(
    cut: MonoCut, sample_rate: int, *, resample: bool = True, speed: float = 1.0
) -> NDArray[np.float32]:
    """Return the samples of an utterance.

    Args:
        cut: cut with one channel.
        sample_rate: target sample rate in Hz.
        resample: resample audio of another rate, with one warning per rate; false: raise an error.
        speed: speed perturbation factor (also changes the pitch).

    Returns:
        [samples] float32 in −1 … 1, cut.duration / speed seconds long.

    Raises:
        UserError: the file is missing, truncated or empty, has a sample that is not finite, has another
            rate and `resample` is false, or has more than one channel.
    """
    file = cut.recording.sources[0].source
    use_our_readers()
    try:
        audio = cut.load_audio()
    except Exception as error:  # lhotse wraps every backend's own exceptions
        if known := _user_error(error):
            raise UserError(f"utterance {cut.id}: {known}") from error
        _check_length(cut)
        raise UserError(f"utterance {cut.id}: cannot read {file}: {in_words(error)}") from error
    if audio.shape[0] != 1:
        raise UserError(f"utterance {cut.id}: {file} has {audio.shape[0]} channels, expected 1")
    samples = checked(audio[0], f"utterance {cut.id}: {file}")
    if cut.sampling_rate != sample_rate and not resample:
        raise UserError(f"utterance {cut.id}: {file} has {cut.sampling_rate} Hz, expected {sample_rate} Hz")
    if cut.sampling_rate != sample_rate:
        notice_resampling(cut.sampling_rate, sample_rate)
    # Played faster, audio has a higher sample rate: one resampling changes speed and rate.
    return convert(samples, cut.sampling_rate * speed, sample_rate)


def _check_length(cut: MonoCut) -> None:
    """Raise `UserError` if rate or length of an audio file are not those of the manifest."""
    recording, file = cut.recording, cut.recording.sources[0].source
    if is_member(str(file)):
        return
    samples, rate, _ = header_facts(file)
    if (samples, rate) != (recording.num_samples, recording.sampling_rate):
        raise UserError(
            f"utterance {cut.id}: {file}: expected {recording.num_samples:,} samples at "
            f"{recording.sampling_rate:,} Hz as in the manifest, found {samples:,} at {rate:,} Hz"
        ) from None


def convert(samples: NDArray[np.float32], rate: float, sample_rate: int) -> NDArray[np.float32]:
    """Resample [samples] from `rate` to `sample_rate` Hz at about the same cost for any ratio."""
    if rate == sample_rate:
        return samples
    return soxr.resample(samples, rate, sample_rate)


def notice_resampling(rate: int, sample_rate: int) -> None:
    """Warn once per pair of rates that audio is resampled."""
    with _WARNING:  # threads read ahead
        _warn_of_rate(rate, sample_rate)


@functools.cache
def _warn_of_rate(rate: int, sample_rate: int) -> None:
    log.warning("audio at %d Hz is resampled to the model's %d Hz", rate, sample_rate)


class SphereBackend(AudioBackend):
    """Audio backend of lhotse for `.wv1`, `.wv2` and `.sph` files."""

    def is_applicable(self, path_or_fd: Any) -> bool:
        """Return whether the file has a suffix of SPHERE and is in that format."""
        named = isinstance(path_or_fd, str | Path) and str(path_or_fd).lower().endswith(SUFFIXES)
        return named and is_sphere(path_or_fd)

    handles_special_case = is_applicable

    def read_audio(
        self,
        path_or_fd: Any,
        offset: float = 0.0,
        duration: float | None = None,
        force_opus_sampling_rate: int | None = None,
    ) -> tuple[NDArray[np.float32], int]:
        """Return [channels, samples] from `offset` (s) on, `duration` seconds long, and the rate in Hz."""
        header = read_header(path_or_fd)
        start = round(offset * header.sample_rate)
        samples = None if duration is None else round(duration * header.sample_rate)
        if samples is not None and start + samples > header.samples >= start + samples - 1:
            samples = header.samples - start  # manifests contain rounded times
        return read_sphere(path_or_fd, start, samples), header.sample_rate


class ArchiveBackend(LibsndfileBackend):
    """Audio backend of lhotse for files in tar archives, named as in `asr.data.shar`."""

    def is_applicable(self, path_or_fd: Any) -> bool:
        """Return whether the name is that of a file in an archive."""
        return isinstance(path_or_fd, str) and is_member(path_or_fd)

    handles_special_case = is_applicable

    def read_audio(self, path_or_fd: Any, *args: Any, **options: Any) -> tuple[NDArray[np.float32], int]:
        """Return [channels, samples] and the rate in Hz."""
        return super().read_audio(read_member(path_or_fd), *args, **options)


@functools.cache
def use_our_readers() -> None:
    """Read SPHERE files and files in archives, and never run a command on a file's name."""
    # lhotse's own readers run sph2pipe or ffmpeg in a shell, with the file's name unquoted.
    in_shell = (Sph2pipeSubprocessBackend, FfmpegSubprocessOpusBackend)
    others = [b for b in get_default_audio_backend().backends if not isinstance(b, in_shell)]
    set_current_audio_backend(CompositeAudioBackend([SphereBackend(), ArchiveBackend(), *others]))


def _user_error(error: BaseException | None) -> UserError | None:
    """The `UserError` that lhotse has wrapped, if there is one."""
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return error
