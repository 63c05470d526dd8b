"""Decides which sources are read together, and which recordings are encoded together."""

import math
from collections.abc import Container, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.data.audio_file import Samples
from asr.data.cuts import Cuts
from asr.data.sampler import plan_by_length
from asr.model.acoustic_model import AcousticModel
from asr.model.streaming import why_not_streamed
from asr.records.options import Shard
from asr.transcription.options import LONGER_THAN_TRAINING, LONGEST_CHUNK_S, EncodingOptions

# Number of recordings read together, the unit of shards and of resuming. Several groups are in memory at a
# time, so groups are small, and a recording that would fill one is a group.
GROUP = 16
GROUP_BYTES = 4 << 20
SECONDS_PER_BATCH = 60.0  # default duration of audio encoded together, padding included


def groups_in_order(sizes: Sequence[int | None]) -> list[list[int]]:
    """Divide recordings, in order, into groups to read together; large ones and streams are groups alone.

    Args:
        sizes: sizes in bytes; None: unknown.

    Returns:
        Positions of the recordings of each group.
    """
    groups: list[list[int]] = []
    room = 0
    for position, known in enumerate(sizes):
        size = GROUP_BYTES + 1 if known is None else known
        if not groups or size > room or len(groups[-1]) == GROUP:
            groups.append([])
            room = GROUP_BYTES
        groups[-1].append(position)
        room -= size
    return groups


def groups_by_length(lengths: NDArray[np.int64], budget: int) -> list[list[int]]:
    """Divide recordings, longest first, into batches of at most `budget`, padding included.

    Args:
        lengths: [recordings] lengths in frames or samples.
        budget: maximum length of a batch of more than one recording.

    Returns:
        Positions of the recordings of each batch.
    """
    return [batch.tolist() for batch in plan_by_length(lengths, budget)] if len(lengths) else []


def length_groups(model: AcousticModel, cuts: Cuts, frames_per_batch: int) -> list[list[int]]:
    """Divide a manifest into batches of at most `frames_per_batch` feature frames, by its durations."""
    shift_ms = model.config.features.frame_shift_ms
    frames = np.maximum(1, np.rint(cuts.durations_s * 1000 / shift_ms)).astype(np.int64)
    return groups_by_length(frames, frames_per_batch)


def encoded_together(duration_s: float, longest_s: float, options: EncodingOptions) -> bool:
    """Return whether a recording is short enough for a batch, given the longest training audio (0: unknown).

    A longer recording is encoded alone, in one pass or in chunks, with all threads and progress of its own.
    """
    return options.mode != "chunked" and duration_s <= LONGER_THAN_TRAINING * (longest_s or LONGEST_CHUNK_S)


def longest_like_training_s(model: AcousticModel) -> float:
    """Return the duration of the longest training audio in seconds; 0: unknown.

    It is infinite for a model that can recognise streams, whose frames don't depend on a recording's length.
    A limited number of positions of the encoder must suffice for `LONGER_THAN_TRAINING` times the result.
    """
    if not why_not_streamed(model):
        return math.inf
    known_s, limit_s = model.config.longest_s, model.longest_input_s
    return known_s if limit_s == math.inf else min(known_s or LONGEST_CHUNK_S, limit_s / LONGER_THAN_TRAINING)


def unfinished(groups: list[list[int]], shard: Shard | None, done: Container[int]) -> list[list[int]]:
    """Return the unfinished groups of a shard.

    Shards and resuming leave out whole groups, so batches, and rounding, are the same as in undivided work.

    Args:
        groups: positions of the recordings of each group.
        shard: shard whose groups to return; None: all groups.
        done: positions of finished recordings; a group is left out if all its recordings are finished.
    """
    own = shard.of(groups) if shard else groups
    return [group for group in own if not all(position in done for position in group)]


def padded(recordings: Sequence[Samples]) -> tuple[Tensor, Tensor]:
    """Return recordings as a batch: [B, samples], right-padded with zeros, and [B] valid samples."""
    audio = [torch.from_numpy(samples) for samples in recordings]
    return pad_sequence(audio, batch_first=True), torch.tensor([len(x) for x in audio])
