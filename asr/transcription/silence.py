"""Silent stretches of a recording, which are cut out before it is encoded and are blank in its posteriors."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.data.audio_file import Samples
from asr.data.recording import SILENT_PEAK
from asr.losses.ctc import BLANK
from asr.model.acoustic_model import AcousticModel
from asr.transcription.batches import longest_like_training_s
from asr.transcription.options import LONGEST_CHUNK_S

# Shorter stretches are pauses of speech, as the training audio has them. In speech with peaks at −60 dB,
# pauses and weak consonants are below the floor too, but not for so long.
SHORTEST_S = 0.5
# Kept beside sound: as much as a label may be late, and more than the window and the convolutions of a frame.
# More is worse, because features are normalised over it: single utterances between pauses of dither
# had a WER of 1.0 % with 0.08 s, 1.8 % with 0.16 s and 6.3 % with 0.4 s.
MARGIN_S = 0.1
# In recordings longer than those of training, steady noise is no sound either, if it lies so far below the
# loudest two seconds and 90 % of its frames lie within so many dB: speech, however quiet, varies by more.
# With noise at −60 dB in pauses of 10 s between 16 utterances of the demo's test set, WER fell from 110 to
# 0.6 % in chunks of 8 s and from 86 to 4.9 % in one pass; with every second utterance 20 or 30 dB quieter and
# no noise, not a word changed.
NOISE_DB = 35.0
STEADY_DB = 6.0
LOUDEST_S = 2.0
# Log-probability of labels in silence; that of blank is 0, so that the sum is 1 to the precision of float32.
# It is finite, so that an alignment with no other place for its labels remains possible.
UNHEARD = -30.0


@dataclass(frozen=True)
class Sound:
    """What is left of a recording without its silent stretches.

    Attributes:
        samples: [samples] to encode; those of the recording itself if it has no silent stretch.
        silent_T: [T] whether each encoder frame of the recording was cut out.
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
        """Return the log-probabilities of the recording from those of its sound; silence is blank."""
        if self.whole:
            return log_probs_TV
        found = log_probs_TV.new_full((len(self.silent_T), log_probs_TV.shape[1]), UNHEARD)
        found[:, BLANK] = 0.0
        found[torch.from_numpy(~self.silent_T).to(found.device)] = log_probs_TV
        return found


def sound_of(model: AcousticModel, samples: Samples) -> Sound:
    """Cut the silent stretches out of [samples] at the model's rate.

    Zeros and dither are no sound, but normalising features over an utterance turns them into some: in a
    chunk without speech, the dither is as loud as speech; in one with little speech, the speech is not what
    the model was trained on. With cuts, the encoder's input is as in training, for every normalisation,
    in one pass and in chunks. Statistics over frames of speech alone would change the model's input in
    recordings without such stretches too.
    """
    hop = model.front_end.shift_samples * model.config.model.subsampling
    frames = model.encoder_frames(len(samples) / model.sample_rate)
    shortest, margin = (round(seconds / model.frame_s) for seconds in (SHORTEST_S, MARGIN_S))
    silent_T = np.zeros(frames, dtype=np.bool_)
    quiet = quiet_blocks(samples, hop)
    if len(samples) > (longest_like_training_s(model) or LONGEST_CHUNK_S) * model.sample_rate:
        quiet |= noise_blocks(samples, quiet, hop, shortest, round(LOUDEST_S / model.frame_s))
    for start, end in np.flatnonzero(np.diff(quiet, prepend=False, append=False)).reshape(-1, 2).tolist():
        if end - start >= min(shortest, len(quiet)):
            silent_T[start + margin if start else 0 : end - margin if end < len(quiet) else frames] = True
    if not silent_T.any():
        return Sound(samples, silent_T)
    # A frame's samples start at its block, so cutting blocks cuts as many frames. The samples after the last
    # block that has a frame complete the windows of the frames before.
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


def noise_blocks(
    samples: Samples, silent: NDArray[np.bool_], size: int, shortest: int, loudest: int
) -> NDArray[np.bool_]:
    """Return whether each block of `size` samples is steady noise; the last, shorter one is not.

    Args:
        samples: [samples] of a recording.
        silent: [blocks] whether each is silent anyway.
        size: samples of a block.
        shortest: smallest number of blocks in a row.
        loudest: number of blocks whose median is the level of the recording.
    """
    whole = len(samples) // size
    power = np.square(samples[: whole * size].reshape(whole, size), dtype=np.float64).mean(axis=1)
    level_db = 10 * np.log10(power + 1e-20)
    noise = np.zeros_like(silent)
    low = (level_db < np.median(np.sort(level_db)[-loudest:]) - NOISE_DB) & ~silent[:whole]
    for start, end in np.flatnonzero(np.diff(low, prepend=False, append=False)).reshape(-1, 2).tolist():
        if end - start >= shortest:
            least, most = np.quantile(level_db[start:end], [0.05, 0.95])
            noise[start:end] = most - least <= STEADY_DB
    return noise
