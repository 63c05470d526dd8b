"""Decoding of recordings of any length, stretch by stretch, to transcripts."""

import itertools
import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.losses.ctc import BLANK
from asr.model.acoustic_model import AcousticModel
from asr.search.decoder import Decoder, search, text_of
from asr.search.path import TokenPath, Word
from asr.text.tokenizer import Tokenizer
from asr.transcription.options import TranscriptionConfig
from asr.transcription.transcript import Transcript, split_segments, timed_words

log = logging.getLogger(__name__)


# The search runs on stretches of 10 to 30 s, cut in the longest pause within this range.
STRETCH_S = (10.0, 30.0)
STRETCHES_PER_BATCH = 8


def transcript_of(
    path: TokenPath,
    model: AcousticModel,
    tokenizer: Tokenizer,
    config: TranscriptionConfig,
    duration_s: float,
    name: str,
    channel: int | None = None,
) -> Transcript:
    """Return the transcript of a search result; warn about low confidence."""
    tokens = tokenizer.tokens(path.ids)
    times_s = [round(frame * model.frame_s, 3) for frame in path.frames]
    text = text_of(path, tokenizer)
    if path.confidence < config.min_confidence:
        log.warning(
            "%s: low confidence (%.2f, below %.2f): the audio may be unlike the training data",
            name,
            path.confidence,
            config.min_confidence,
        )
    return Transcript(
        text=" ".join(tokens) if text is None else text,
        tokens=tokens,
        times_s=times_s,
        confidence=[round(x, 4) for x in path.confidences],
        words=None if path.words is None else [(word.word, times_s[word.start]) for word in path.words],
        duration_s=duration_s,
        segments=split_segments(timed_words(path, tokenizer, model.frame_s), config.min_confidence),
        mean_confidence=round(path.confidence, 4),
        low_confidence=path.confidence < config.min_confidence,
        channel=channel,
    )


def split_stretches(log_probs_TV: Tensor, frame_s: float) -> list[int]:
    """Return the boundaries of the stretches to search: frame 0, the middles of long pauses, and T.

    A recording shorter than the longest stretch is not split.
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


def decode_stretches(
    decoder: Decoder,
    recordings: Sequence[Tensor],
    frame_s: float,
    advance: Callable[[float], None] = lambda share: None,
) -> list[TokenPath]:
    """Search recordings, each [T, V], in stretches, several per batch; return the path of each.

    The longest stretch bounds the memory of the search. `advance` is called as by `emissions`.
    """
    cuts = [split_stretches(log_probs_TV, frame_s) for log_probs_TV in recordings]
    stretches = [
        log_probs_TV[start:end]
        for log_probs_TV, own in zip(recordings, cuts, strict=True)
        for start, end in itertools.pairwise(own)
    ]
    found: list[TokenPath] = []
    for first in range(0, len(stretches), STRETCHES_PER_BATCH):
        batch = stretches[first : first + STRETCHES_PER_BATCH]
        lengths = torch.tensor([len(x) for x in batch])
        found += search(decoder, pad_sequence(batch, batch_first=True), lengths)
        advance(len(batch) / len(stretches))
    paths = iter(found)
    return [join_paths(list(itertools.islice(paths, len(own) - 1)), own) for own in cuts]


def join_paths(paths: list[TokenPath], starts: list[int]) -> TokenPath:
    """Join the paths of successive stretches, which start at the frames `starts`."""
    if len(paths) == 1:
        return paths[0]
    words: list[Word] = []
    tokens = 0
    for path in paths:
        words += [Word(word.word, word.start + tokens, word.end + tokens) for word in path.words or []]
        tokens += len(path.ids)
    return TokenPath(
        ids=[index for path in paths for index in path.ids],
        frames=[frame + start for path, start in zip(paths, starts, strict=False) for frame in path.frames],
        confidences=[x for path in paths for x in path.confidences],
        words=None if paths[0].words is None else words,
        ends=[end + start for path, start in zip(paths, starts, strict=False) for end in path.ends],
    )
