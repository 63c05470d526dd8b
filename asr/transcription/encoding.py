"""Encoding of recordings of any length, in one pass or in overlapping chunks."""

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.data.recording import Samples
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel, evaluating
from asr.transcription.options import EncodingOptions

log = logging.getLogger(__name__)

CHUNKS_PER_BATCH = 4
TOO_LONG = "out of memory: use mode=chunked or a linear attention mechanism"
UNLIKE_TRAINING = 4.0  # ratio above which mode=onepass gives a warning


@torch.inference_mode()
def emissions(
    model: AcousticModel,
    samples: Samples,
    config: EncodingOptions,
    name: str = "recording",
    advance: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """Return the log-probabilities of a recording, [T, V] on the CPU.

    In one pass, every frame attends to the whole recording; features are computed in blocks, so memory
    grows linearly if the attention mechanism is linear. In chunks, every frame attends to its chunk, which
    is normalised like an utterance, and chunks are joined in the middle of their overlap.

    Args:
        model: acoustic model.
        samples: [samples] at the model's sample rate.
        config: mode and chunks.
        name: name of the recording, for messages.
        advance: called with the share of the work done since the last call; the shares add up to 1.

    Raises:
        UserError: a log-probability is NaN.
    """
    audio = torch.from_numpy(samples)
    duration_s = len(audio) / model.sample_rate
    with evaluating(model):
        longest_s = model.config.longest_s
        if not config.in_chunks(duration_s, longest_s):
            if longest_s and duration_s > UNLIKE_TRAINING * longest_s:
                log.warning(
                    "%s: lasts %.0f s, but the longest training audio only %.0f s: try mode=auto, "
                    "or train with data.concatenate_s",
                    name,
                    duration_s,
                    longest_s,
                )
            (log_probs_TV,) = encode(model, [audio])
            advance(1.0)
            return finite(log_probs_TV, name)
        parts = []
        chunk_s, overlap_s = config.sizes_s(longest_s)
        chunks = split_chunks(
            model.encoder_frames(duration_s), round(chunk_s / model.frame_s), round(overlap_s / model.frame_s)
        )
        front_end = model.front_end
        hop = front_end.shift_samples * model.config.model.subsampling
        for first in range(0, len(chunks), CHUNKS_PER_BATCH):
            batch = chunks[first : first + CHUNKS_PER_BATCH]
            beyond = front_end.window_samples - front_end.shift_samples
            audios = [audio[c.start * hop : c.end * hop + beyond] for c in batch]
            for chunk, own in zip(batch, encode(model, audios), strict=True):
                parts.append(own[chunk.keep_start - chunk.start : chunk.keep_end - chunk.start])
            advance(len(batch) / len(chunks))
        return finite(torch.cat(parts), name)


def finite(log_probs_TV: Tensor, name: str) -> Tensor:
    """Return the log-probabilities; raise UserError if one is NaN."""
    if log_probs_TV.isnan().any():
        raise UserError(
            f"{name}: expected log-probabilities, found NaN (samples far beyond 1, or a broken model?)"
        )
    return log_probs_TV


@torch.inference_mode()
def encode(model: AcousticModel, audios: Sequence[Tensor]) -> list[Tensor]:
    """Return the log-probabilities of a batch of [samples] encoded together, each [T, V] on the CPU."""
    lengths = torch.tensor([len(x) for x in audios])
    padded = pad_sequence(list(audios), batch_first=True)
    with evaluating(model):
        log_probs, frames = model(padded.to(model.device), lengths.to(model.device))
    return [own[:count].cpu() for own, count in zip(log_probs, frames.tolist(), strict=True)]


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the error means that the GPU or the machine ran out of memory."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)


@dataclass(frozen=True)
class Chunk:
    """A chunk of encoder frames; of the frames [start, end), [keep_start, keep_end) are kept."""

    start: int
    end: int
    keep_start: int
    keep_end: int


def split_chunks(frames: int, size: int, overlap: int) -> list[Chunk]:
    """Divide `frames` encoder frames into overlapping chunks of `size` frames that keep each frame once.

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
