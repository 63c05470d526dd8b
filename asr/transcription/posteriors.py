"""Posteriors: the model's log-probabilities for a batch or a recording of any length, checked for NaN."""

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.attention.own import nan_again
from asr.data.audio_file import Samples
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel, evaluating
from asr.transcription.batches import longest_like_training_s, padded
from asr.transcription.options import EncodingOptions
from asr.transcription.silence import sound_of

log = logging.getLogger(__name__)

CHUNKS_PER_BATCH = 4  # bounds the memory; also a step of the progress bar
UNLIKE_TRAINING = 4.0  # ratio above which mode=onepass gives a warning
TOO_LONG = "out of memory: use mode=chunked or a linear attention mechanism"


@dataclass(frozen=True)
class Posteriors:
    """Log-probabilities of a batch.

    Attributes:
        log_probs_BTV: [B, T, V] log-probabilities on the model's device, blank at index 0.
        lengths_B: [B] valid frames.
    """

    log_probs_BTV: Tensor
    lengths_B: Tensor

    def each(self) -> list[Tensor]:
        """Return the log-probabilities of each recording without padding, [T, V]."""
        lengths = self.lengths_B.tolist()
        return [
            log_probs_TV[:length] for log_probs_TV, length in zip(self.log_probs_BTV, lengths, strict=True)
        ]


@torch.inference_mode()
def encode(model: AcousticModel, recordings: Sequence[Samples]) -> Posteriors:
    """Return the log-probabilities of recordings, each [samples] at the model's rate, encoded together.

    Silent stretches are not encoded and are blank in the result; see `sound_of`.
    """
    sounds = [sound_of(model, samples) for samples in recordings]
    batch = _encode_sound(model, [sound.samples for sound in sounds if not sound.empty])
    if all(sound.whole for sound in sounds):
        return batch
    posteriors = iter(batch.each())
    none_TV = batch.log_probs_BTV.new_empty(0, batch.log_probs_BTV.shape[-1])
    each = [sound.with_silence(none_TV if sound.empty else next(posteriors)) for sound in sounds]
    lengths_B = torch.tensor([len(log_probs_TV) for log_probs_TV in each], device=model.device)
    return Posteriors(pad_sequence(each, batch_first=True), lengths_B)


def _encode_sound(model: AcousticModel, recordings: Sequence[Samples]) -> Posteriors:
    """Encode like `encode`, silence included; the batch may be empty."""
    if not recordings:
        none_BTV = torch.empty(0, 0, model.head.projection.out_features, device=model.device)
        return Posteriors(none_BTV, torch.empty(0, dtype=torch.int64, device=model.device))
    audio_BS, lengths_B = (x.to(model.device) for x in padded(recordings))
    with evaluating(model):
        posteriors = Posteriors(*model(audio_BS, lengths_B))
        broken = bool(posteriors.log_probs_BTV.isnan().any())
        if broken and (cause := nan_again(model, lambda: model(audio_BS, lengths_B))):
            raise UserError(cause)
        return posteriors


@torch.inference_mode()
def posteriors(
    model: AcousticModel,
    samples: Samples,
    config: EncodingOptions,
    name: str = "recording",
    advance: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """Return the log-probabilities of a recording of any length, [T, V] on the CPU.

    In one pass, every frame attends to the whole recording; features are computed in blocks, so memory
    grows linearly if the attention mechanism is linear. In chunks, every frame attends to its chunk, which
    is normalised like an utterance, and chunks are joined in the middle of their overlap. Silent stretches
    are cut out first (see `sound_of`), so that chunks contain as much speech as the training audio; the
    remaining duration decides whether chunks are needed.

    Args:
        model: acoustic model.
        samples: [samples] at the model's sample rate.
        config: mode and chunks.
        name: name of the recording, for messages.
        advance: called with the fraction of the work done since the last call; fractions add up to 1.

    Raises:
        UserError: a log-probability is NaN, or the encoder has too few positions for a pass or chunk.
    """
    sound = sound_of(model, samples)
    duration_s = len(sound.samples) / model.sample_rate
    longest_s, limit_s = longest_like_training_s(model), model.longest_input_s
    in_chunks = not sound.empty and config.in_chunks(duration_s, longest_s)
    if config.chunk_s > limit_s or (duration_s > limit_s and not in_chunks):
        raise UserError(
            f"{name}: expected at most {limit_s:g} s in a pass or chunk, the encoder's positions, "
            f"found {duration_s:.1f} s with mode={config.mode} and chunk_s={config.chunk_s:g}"
        )
    if not in_chunks:
        if longest_s and duration_s > UNLIKE_TRAINING * longest_s:
            log.warning(
                "%s: lasts %.0f s, but the longest training audio only %.0f s: try mode=auto, "
                "or train with data.concatenate_s",
                name,
                duration_s,
                longest_s,
            )
        (log_probs_TV,) = encode(model, [samples]).each()
        advance(1.0)
        return checked_posteriors(log_probs_TV, name).cpu()
    chunk_s, overlap_s = config.sizes_s(longest_s)
    chunks = split_chunks(
        model.encoder_frames(duration_s), round(chunk_s / model.frame_s), round(overlap_s / model.frame_s)
    )
    hop = model.front_end.shift_samples * model.config.model.subsampling
    beyond = model.front_end.window_samples - model.front_end.shift_samples  # the rest of the last window
    parts = []
    for first in range(0, len(chunks), CHUNKS_PER_BATCH):
        batch = chunks[first : first + CHUNKS_PER_BATCH]
        audio = [sound.samples[c.start * hop : c.end * hop + beyond] for c in batch]
        each = _encode_sound(model, audio).each()
        for chunk, own in zip(batch, each, strict=True):
            parts.append(own[chunk.keep_start - chunk.start : chunk.keep_end - chunk.start].cpu())
        advance(len(batch) / len(chunks))
    return sound.with_silence(checked_posteriors(torch.cat(parts), name))


def identity_of(model: AcousticModel) -> dict[str, str]:
    """Return all that posteriors depend on besides the audio, as inputs of a job."""
    return {"model": model.digest(), "device": model.device.type, "computed": model.precision.name}


def checked_posteriors(log_probs_TV: Tensor, name: str) -> Tensor:
    """Return the log-probabilities of a recording; raise UserError if one is NaN."""
    if log_probs_TV.isnan().any():
        raise UserError(
            f"{name}: expected log-probabilities, found NaN (samples far beyond 1, or a broken model?)"
        )
    return log_probs_TV


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the error means that the GPU or the machine ran out of memory."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)


def failure(error: Exception, name: str) -> str:
    """Return the message for a recording's error; raise errors with other causes."""
    if isinstance(error, UserError):
        return error.line
    if is_out_of_memory(error):
        return f"{name}: {TOO_LONG}"
    raise error


@dataclass(frozen=True)
class Chunk:
    """A chunk of the encoder frames start … end − 1, of which keep_start … keep_end − 1 are kept."""

    start: int
    end: int
    keep_start: int
    keep_end: int


def split_chunks(frames: int, size: int, overlap: int) -> list[Chunk]:
    """Divide `frames` encoder frames into overlapping chunks of `size` frames; each frame is kept once.

    Example:
        >>> [(c.start, c.end, c.keep_start, c.keep_end) for c in split_chunks(20, size=10, overlap=4)]
        [(0, 10, 0, 8), (6, 16, 8, 14), (12, 20, 14, 20)]
    """
    size = max(2, size)
    overlap = min(overlap, size // 2)
    starts = range(0, max(1, frames - overlap), size - overlap)
    cuts = [0, *(start + overlap // 2 for start in starts[1:]), frames]
    return [
        Chunk(start, min(start + size, frames), keep_start, keep_end)
        for start, (keep_start, keep_end) in zip(starts, itertools.pairwise(cuts), strict=True)
    ]
