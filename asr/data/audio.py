"""The waveform of an utterance: read, checked, resampled to the model's rate."""

import logging
import math
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import soxr

from asr.data.audio_file import AudioFile, Samples, Undecodable, checked_samples, open_audio
from asr.data.facts import header_facts
from asr.data.shar import is_member
from asr.errors import UserError

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

log = logging.getLogger(__name__)
_WARNING = threading.Lock()
_noticed: set[int] = set()  # models' sample rates for which the warning has been given

# As in lhotse, so that a manifest gives the same samples in both: an utterance may lack this much at the end
# of its file, and one shorter than its recording by less than WHOLE_S counts as all of it.
MISSING_S = 0.5
WHOLE_S = 1e-3


def load_cut(cut: "MonoCut", sample_rate: int, *, speed: float = 1.0) -> Samples:
    """Return the samples of an utterance; audio at other rates is resampled, with a warning per target rate.

    Args:
        cut: cut with one channel.
        sample_rate: target sample rate in Hz.
        speed: speed perturbation factor (also changes the pitch).

    Returns:
        [samples] float32 in −1 … 1, cut.duration / speed seconds long.

    Raises:
        UserError: the file is missing, truncated or empty; a sample is not finite; or rate, length or
            channels differ from the manifest's.
    """
    utterance = f"utterance {cut.id}"
    file, samples = _read(cut, utterance)
    samples = checked_samples(samples, f"{utterance}: {file}")
    if cut.sampling_rate != sample_rate:
        notice_resampling([cut.sampling_rate], sample_rate)
    # Audio played faster has a higher sample rate, so one resampling changes both speed and rate.
    return convert(samples, cut.sampling_rate * speed, sample_rate)


def _read(cut: "MonoCut", utterance: str) -> tuple[str, Samples]:
    """Return the file of an utterance and its [samples] at the file's rate."""
    recording = cut.recording
    source = next((source for source in recording.sources if cut.channel in source.channels), None)
    if source is None:
        known = ", ".join(str(channel) for source in recording.sources for channel in source.channels)
        raise UserError(
            f"{utterance}: expected a channel of its recording ({known}), found channel {cut.channel}"
        )
    file, channels = source.source, source.channels
    whole = math.isclose(cut.duration, recording.duration, abs_tol=WHOLE_S)
    wanted = sample_count(cut.duration, recording.sampling_rate)
    try:
        with open_audio(file) as audio:
            if audio.channels != len(channels):
                _check_length(cut, file)  # FFmpeg finds no channels in some broken files
                raise UserError(f"{file} has {audio.channels} channels, expected {len(channels)}")
            rate = audio.rate
            part = read_part(audio, cut.start, None if whole else cut.duration)
    except UserError as error:
        raise UserError(f"{utterance}: {error}") from error
    except Undecodable as error:
        _check_length(cut, file)
        raise UserError(f"{utterance}: cannot read {file}: {error}") from error
    missing = wanted - len(part)
    if rate != recording.sampling_rate or not len(part) or abs(missing) > math.ceil(MISSING_S * rate):
        _check_length(cut, file)
        raise UserError(f"{utterance}: {file}: expected {wanted:,} samples, found {len(part):,}")
    samples = np.ascontiguousarray(part[:wanted, channels.index(cut.channel)])
    return file, np.pad(samples, (0, missing), mode="reflect") if missing > 0 else samples


def read_part(audio: AudioFile, start_s: float, duration_s: float | None) -> Samples:
    """Read [samples, channels] from `start_s` for `duration_s`; None: to the end of the file."""
    start = sample_count(start_s, audio.rate)
    if start:
        audio.seek(start)
    if duration_s is None:
        return audio.read()
    count = sample_count(duration_s, audio.rate)
    one_more = audio.samples is not None and start + count == audio.samples + 1  # manifests round times
    return audio.read(count - one_more)


def sample_count(seconds: float, rate: int) -> int:
    """Return the number of samples in a duration, rounded as in lhotse: to 8 decimals, then halves up."""
    return math.floor(round(seconds * rate, 8) + 0.5)


def _check_length(cut: "MonoCut", file: str) -> None:
    """Raise `UserError` if the rate or length of an audio file differs from the manifest's."""
    if is_member(file):
        return
    recording = cut.recording
    samples, rate, _ = header_facts(file)
    if (samples, rate) != (recording.num_samples, recording.sampling_rate):
        raise UserError(
            f"utterance {cut.id}: {file}: expected {recording.num_samples:,} samples at "
            f"{recording.sampling_rate:,} Hz as in the manifest, found {samples:,} at {rate:,} Hz"
        ) from None


def convert(samples: Samples, rate: float, sample_rate: int) -> Samples:
    """Resample [samples] from `rate` to `sample_rate` Hz at about the same cost for any ratio."""
    if rate == sample_rate:
        return samples
    # Not torchaudio: for 16 kHz, its default filter weakens a tone of 8.5 kHz by only 11 dB, and its cost
    # grows with numerator and denominator of the ratio, which speed perturbation makes large.
    return soxr.resample(samples, rate, sample_rate)


def notice_resampling(rates: Iterable[int], sample_rate: int) -> None:
    """Warn that audio at other rates is resampled, once for each sample rate of a model."""
    with _WARNING:  # threads read ahead
        others = sorted(set(rates) - {sample_rate})
        if not others or sample_rate in _noticed:
            return
        _noticed.add(sample_rate)
    found = ", ".join(map(str, others))
    log.warning("audio at other rates, such as %s Hz, is resampled to the model's %d Hz", found, sample_rate)
