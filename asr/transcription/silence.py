"""Cuts silent stretches out of a recording before it is encoded; in its posteriors, they are blank."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.data.audio_file import SILENT_PEAK, Samples
from asr.losses.ctc import BLANK
from asr.model.acoustic_model import AcousticModel
from asr.model.streaming import why_not_streamed

# Shorter stretches are pauses in speech, which the training audio has, too. In speech with peaks at −60 dB,
# pauses and weak consonants are also below the floor, but not for so long.
SHORTEST_S = 0.5
# Silence kept on both sides of sound: as long as a label may be late, and longer than a frame's window and
# convolutions reach. More is worse, because features are normalised over it: single utterances between
# pauses of dither had a WER of 1.0 % with 0.08 s, 1.8 % with 0.16 s and 6.3 % with 0.4 s.
MARGIN_S = 0.1
# Steady noise counts as silence, too: stretches of at least STEADY_S in which every band's mean level over
# BLOCK_S stays within ±STEADY_DB of its mean. In 10 minutes of Gaussian noise of any colour, the largest
# deviation in 1.5 s is 4.6 dB; in the demo's test sets the smallest is 16.2 dB, and 6.6 dB in noise 5 dB
# below the speech. Shorter stretches must also be far below the loudest two seconds. Error rates:
# recipes/demo/results/archive.md, Steady noise.
STEADY_S = 1.5
STEADY_DB = 5.5
BLOCK_S = 0.12
LOW_DB = 35.0
LOUDEST_S = 2.0
SPECTRUM_S = 0.04  # window of the spectra; shorter ones don't resolve the bands
# Bands are a twelfth of the mel scale from LOWEST_HZ to 7.6 kHz: narrower ones vary more in noise, wider ones
# less in speech. Bands that far below the loudest contain only its leakage.
BAND_MEL = 222.0
LOWEST_HZ = 100.0
BAND_RANGE_DB = 40.0
PIECE = 1024  # spectra at a time, which bounds the memory
# Log-probability of labels in silence; blank has 0, so the probabilities add up to 1 in float32.
# It is finite, so that an alignment with no other place for its labels remains possible.
UNHEARD = -30.0


@dataclass(frozen=True)
class Sound:
    """A recording without its silent stretches.

    Attributes:
        samples: [samples] to encode; the recording itself if it has no silent stretches.
        silent_T: [T] whether an encoder frame of the recording was cut out.
    """

    samples: Samples
    silent_T: NDArray[np.bool_]

    @property
    def whole(self) -> bool:
        """Whether nothing was cut out."""
        return not self.silent_T.any()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to encode."""
        return bool(self.silent_T.all()) and not self.whole

    def with_silence(self, log_probs_TV: Tensor) -> Tensor:
        """Return the log-probabilities of the whole recording, given those of its sound; silence is blank."""
        if self.whole:
            return log_probs_TV
        whole_TV = log_probs_TV.new_full((len(self.silent_T), log_probs_TV.shape[1]), UNHEARD)
        whole_TV[:, BLANK] = 0.0
        whole_TV[torch.from_numpy(~self.silent_T).to(whole_TV.device)] = log_probs_TV
        return whole_TV


def sound_of(model: AcousticModel, samples: Samples) -> Sound:
    """Cut the silent stretches out of [samples] at the model's rate.

    Zeros and dither are silent, but normalising features over an utterance makes them audible: in a chunk
    without speech, dither becomes as loud as speech; in a chunk with little speech, the speech becomes unlike
    the training data. After cutting, the encoder's input is as in training, for every normalisation, in one
    pass and in chunks. Statistics over frames of speech only would also change the model's input in
    recordings without silent stretches.

    Nothing is cut for a model that can recognise streams: it normalises each frame by itself, and the loudest
    audio, to which silence is relative, may come a minute later.
    """
    hop = model.front_end.shift_samples * model.config.model.subsampling
    frames = model.encoder_frames(len(samples) / model.sample_rate)
    shortest, margin = (round(seconds / model.frame_s) for seconds in (SHORTEST_S, MARGIN_S))
    silent_T = np.zeros(frames, dtype=np.bool_)
    if not why_not_streamed(model):
        return Sound(samples, silent_T)
    quiet = quiet_blocks(samples, hop)
    # Spectra span the same time whatever the frame, because speech is steadier over longer times. A frame is
    # steady if every sample of it is.
    size = round(SPECTRUM_S * model.sample_rate)
    steady = np.repeat(steady_blocks(samples, size, model.sample_rate), size)[: len(samples)]
    quiet |= np.logical_and.reduceat(steady, np.arange(0, len(samples), hop))
    for start, end in np.flatnonzero(np.diff(quiet, prepend=False, append=False)).reshape(-1, 2).tolist():
        if end - start >= min(shortest, len(quiet)):
            silent_T[start + margin if start else 0 : end - margin if end < len(quiet) else frames] = True
    if not silent_T.any():
        return Sound(samples, silent_T)
    # A frame's samples start at its block, so cutting blocks cuts as many frames. The samples after the last
    # block with a frame complete the windows of the last frames.
    blocks = samples[: frames * hop]
    kept = np.repeat(~silent_T, hop)[: len(blocks)]
    return Sound(np.concatenate([blocks[kept], samples[len(blocks) :]]), silent_T)


def quiet_blocks(samples: Samples, size: int) -> NDArray[np.bool_]:
    """Return whether each block of `size` samples is silent as in `is_silent`; the last may be shorter."""
    whole = len(samples) // size
    blocks = samples[: whole * size].reshape(whole, size)
    quiet = (blocks.max(axis=1) < SILENT_PEAK) & (blocks.min(axis=1) > -SILENT_PEAK)
    rest = samples[whole * size :]
    return np.append(quiet, np.abs(rest).max() < SILENT_PEAK) if len(rest) else quiet


def steady_blocks(samples: Samples, size: int, sample_rate: int) -> NDArray[np.bool_]:
    """Return whether each block of `size` samples is in a stretch of steady noise; the last may be shorter.

    Args:
        samples: [samples] of a recording.
        size: number of samples in a block, about `SPECTRUM_S`.
        sample_rate: sample rate in Hz.
    """
    steady = np.zeros(-(-len(samples) // size), dtype=np.bool_)
    each = max(1, round(BLOCK_S * sample_rate / size))  # blocks of a mean
    power = band_power(samples, size, sample_rate)
    if len(power) < each:
        return steady
    means = np.lib.stride_tricks.sliding_window_view(power, each, axis=0).mean(axis=-1)
    level_db = 10 * np.log10(means.sum(axis=1) + 1e-20)
    loudest = np.sort(level_db)[-round(LOUDEST_S * sample_rate / size) :]
    low = level_db < np.median(loudest) - LOW_DB
    for seconds, eligible in ((STEADY_S, np.ones_like(low)), (SHORTEST_S, low)):
        blocks = round(seconds * sample_rate / size)
        for first in steady_stretches(10 * np.log10(means + 1e-20), eligible, blocks - each + 1):
            end = first + blocks
            steady[first : len(steady) if end == len(power) else end] = True
    return steady


def steady_stretches(level_db: NDArray[np.float64], eligible: NDArray[np.bool_], count: int) -> list[int]:
    """Return the first of each `count` consecutive levels that are steady.

    Args:
        level_db: [levels, bands] levels.
        eligible: [levels] whether a level may be in a stretch.
        count: number of levels in a stretch.
    """
    if len(level_db) < count:
        return []
    stretches = np.lib.stride_tricks.sliding_window_view(level_db, count, axis=0)
    chosen = np.lib.stride_tricks.sliding_window_view(eligible, count).all(axis=1)
    mean_db = stretches.mean(axis=-1)
    leaves = np.maximum(stretches.max(axis=-1) - mean_db, mean_db - stretches.min(axis=-1)) > STEADY_DB
    leaves &= mean_db > mean_db.max(axis=1, keepdims=True) - BAND_RANGE_DB
    starts: list[int] = np.flatnonzero(chosen & ~leaves.any(axis=1)).tolist()
    return starts


def band_power(samples: Samples, size: int, sample_rate: int) -> NDArray[np.float64]:
    """Return the power in mel bands of each `size` samples with half as many after them: [blocks, bands]."""
    if len(samples) < size + size // 2:
        return np.empty((0, 1))
    windows = np.lib.stride_tricks.sliding_window_view(samples, size)
    overlapping = windows[::size], windows[size // 2 :: size]
    low, high = (1127 * math.log1p(hz / 700) for hz in (LOWEST_HZ, 0.475 * sample_rate))
    mel = np.linspace(low, high, max(1, int((high - low) / BAND_MEL)) + 1)
    edges = np.round(700 * np.expm1(mel / 1127) * size / sample_rate).astype(np.intp)
    shape = np.hanning(size + 1)[:size].astype(np.float32)
    count = len(overlapping[1])
    power = np.zeros((count, len(edges) - 1))
    for first in range(0, count, PIECE):
        piece = slice(first, min(first + PIECE, count))
        for view in overlapping:
            spectra = np.square(np.abs(np.fft.rfft(view[piece] * shape)))
            power[piece] += np.add.reduceat(spectra, edges, axis=1)[:, :-1]
    return power
