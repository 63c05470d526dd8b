"""Searches batches, and recordings of any length frame by frame or in stretches; adds confidences."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.losses.ctc import BLANK
from asr.search.confidence import with_confidences
from asr.search.decoder import Search
from asr.search.path import TokenPath, join_paths
from asr.search.streaming import start_stream

# A search whose memory grows with the length runs on stretches of 10 to 30 s, cut in the longest pause within
# this range.
STRETCH_S = (10.0, 30.0)
STRETCHES_PER_BATCH = 8


def search_batch(search: Search, log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
    """Search a batch and add the confidence of each label.

    Args:
        search: search of a decoder.
        log_probs_BTV: [B, T, V] log-probabilities, blank at index 0.
        lengths_B: [B] valid frames.
    """
    return with_confidences(search(log_probs_BTV, lengths_B), log_probs_BTV)


def search_stretches(
    search: Search,
    recordings: Sequence[Tensor],
    frame_s: float,
    advance: Callable[[float], None] = lambda share: None,
) -> list[TokenPath]:
    """Search recordings of any length: as streams if the search supports that, else in stretches.

    Args:
        search: search of a decoder.
        recordings: log-probabilities of each recording, [T, V].
        frame_s: duration of a frame in seconds.
        advance: called with the fraction of the work done since the last call; fractions add up to 1.

    Returns:
        The path of each recording.
    """
    streams = [stream for _ in recordings if (stream := start_stream(search, frame_s))]
    if streams:
        paths = []
        for stream, log_probs_TV in zip(streams, recordings, strict=True):
            paths.append(stream.push(log_probs_TV, last=True))
            advance(1 / len(recordings))
        return paths
    cuts = [split_stretches(log_probs_TV, frame_s) for log_probs_TV in recordings]
    stretches = [
        log_probs_TV[start:end]
        for log_probs_TV, ends in zip(recordings, cuts, strict=True)
        for start, end in itertools.pairwise(ends)
    ]
    searched: list[TokenPath] = []
    for first in range(0, len(stretches), STRETCHES_PER_BATCH):
        batch = stretches[first : first + STRETCHES_PER_BATCH]
        lengths = torch.tensor([len(x) for x in batch])
        searched += search_batch(search, pad_sequence(batch, batch_first=True), lengths)
        advance(len(batch) / len(stretches))
    parts = iter(searched)
    return [join_paths(list(itertools.islice(parts, len(ends) - 1)), ends) for ends in cuts]


def split_stretches(log_probs_TV: Tensor, frame_s: float) -> list[int]:
    """Return the boundaries of the stretches to search: frame 0, the middles of long pauses, and T.

    A recording shorter than the maximum length of a stretch is not split.
    """
    T = len(log_probs_TV)
    shortest, longest = (max(1, round(seconds / frame_s)) for seconds in STRETCH_S)
    if longest >= T:
        return [0, T]
    frame = torch.arange(T)
    speech = log_probs_TV.argmax(dim=-1) != BLANK
    before = frame - torch.where(speech, frame, -T).cummax(dim=0).values
    after = torch.where(speech, frame, 2 * T).flip(0).cummin(dim=0).values.flip(0) - frame
    depth = torch.minimum(before, after)  # distance to the nearest label; maximal in the middle of a pause
    cuts = [0]
    while T - cuts[-1] > longest:
        first = cuts[-1] + shortest
        cuts.append(first + int(depth[first : cuts[-1] + longest].argmax()))
    return [*cuts, T]
