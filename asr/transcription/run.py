"""Transcription of a recording of any length, in one pass or in overlapping chunks."""

import itertools
import logging
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.config import check, option, refuse
from asr.data.recording import Samples, is_silent
from asr.errors import UserError
from asr.losses.ctc import BLANK
from asr.model.acoustic_model import AcousticModel, evaluating
from asr.search.decoder import BeamConfig, Decoder, search, text_of
from asr.search.path import TokenPath, Word
from asr.text.tokenizer import Tokenizer
from asr.transcription.transcript import Transcript, split_segments, timed_words

log = logging.getLogger(__name__)

MODES = ("onepass", "chunked")
CHUNKS_PER_BATCH = 4
LONGEST_CHUNK_S = 20.0
LONGER_THAN_TRAINING = 4.0  # ratio to the longest training audio above which a warning is logged
LOW_CONFIDENCE = 0.8

# The search runs on stretches of 10 to 30 s, cut in the longest pause within this range.
STRETCH_S = (10.0, 30.0)
STRETCHES_PER_BATCH = 8


@dataclass
class EncodingOptions:
    """How a long recording is encoded."""

    mode: str = option(
        "onepass",
        help="onepass: encode the whole recording at once | chunked: in overlapping chunks",
        choices=MODES,
    )
    chunk_s: float = option(
        0.0,
        help="mode=chunked: length of a chunk; 0: length of the longest training audio, at most 20 s",
        unit="s",
        maximum=1e6,
    )
    overlap_s: float | None = option(
        None,
        help="mode=chunked: overlap of successive chunks; null: a fifth of chunk_s",
        unit="s",
        maximum=1e6,
    )

    def check(self) -> None:
        """Raise UserError for options of chunks in one pass, or chunks that overlap by more than half."""
        if self.mode != "chunked":
            refuse(self, ("chunk_s", "overlap_s"), f"with mode={self.mode}")
        if self.chunk_s and (self.overlap_s or 0) > self.chunk_s / 2:
            raise UserError(f"overlap_s={self.overlap_s}: expected at most half of chunk_s={self.chunk_s}")

    def sizes_s(self, longest_s: float) -> tuple[float, float]:
        """Return the chunk length and overlap in seconds, given the longest training audio (0: unknown)."""
        chunk_s = self.chunk_s or min(LONGEST_CHUNK_S, longest_s or LONGEST_CHUNK_S)
        return chunk_s, min(chunk_s / 5 if self.overlap_s is None else self.overlap_s, chunk_s / 2)


@dataclass
class TranscriptionConfig(EncodingOptions):
    """Options of transcription."""

    channels: str = option(
        "mix",
        help="mix: average the channels | separate: one transcript per channel",
        choices=("mix", "separate"),
    )
    decoder: str = option("greedy", help="greedy | beam | prefix", choices=("greedy", "beam", "prefix"))
    beam: BeamConfig = field(default_factory=BeamConfig)
    min_confidence: float = option(
        LOW_CONFIDENCE, help="mark recordings and segments with a lower confidence", maximum=1
    )

    def check(self) -> None:
        """Raise UserError for an n-best list, or options that the decoder doesn't use."""
        self.beam.check_used(self.decoder)
        if self.beam.nbest != 1:
            raise UserError(
                f"beam.nbest={self.beam.nbest}: expected 1, because a transcript has one text; for n-best "
                "lists use asr decode"
            )


def transcribe_samples(
    model: AcousticModel,
    tokenizer: Tokenizer,
    samples: Samples,
    config: TranscriptionConfig,
    decoder: Decoder,
    *,
    name: str,
    channel: int | None = None,
) -> Transcript:
    """Transcribe one channel.

    Args:
        model: acoustic model.
        tokenizer: tokenizer of the model.
        samples: [samples] at the model's sample rate.
        config: mode, chunks and minimum confidence.
        decoder: decoder, built by `build_decoder`.
        name: name of the file, for messages.
        channel: channel number, if there are several.

    Raises:
        UserError: the recording is shorter than one frame.
    """
    check(config)
    duration_s = len(samples) / model.sample_rate
    if model.encoder_frames(duration_s) == 0:
        raise UserError(f"{name}: {1000 * duration_s:.1f} ms is shorter than one frame")
    if is_silent(samples):
        log.warning("%s: the recording is silent", name)
        return Transcript("", [], [], [], [], duration_s, low_confidence=True, channel=channel)
    log_probs_TV = emissions(model, samples, config, name)
    path = decode_stretches(decoder, log_probs_TV, model.frame_s)
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


@torch.inference_mode()
def emissions(
    model: AcousticModel, samples: Samples, config: EncodingOptions, name: str = "recording"
) -> Tensor:
    """Return the log-probabilities of a recording, [T, V] on the CPU.

    With mode=onepass, every frame attends to the whole recording; features are computed in blocks, so
    memory grows linearly if the attention mechanism is linear. With mode=chunked, every frame attends to
    its chunk, which is normalised like an utterance, and chunks are joined in the middle of their overlap.

    Raises:
        UserError: a log-probability is NaN.
    """
    audio = torch.from_numpy(samples)
    duration_s = len(audio) / model.sample_rate
    with evaluating(model):
        if config.mode == "onepass":
            longest_s = model.config.longest_s
            if longest_s and duration_s > LONGER_THAN_TRAINING * longest_s:
                log.warning(
                    "%s: lasts %.0f s, but the longest training audio only %.0f s: try mode=chunked, "
                    "or train with data.concatenate_s",
                    name,
                    duration_s,
                    longest_s,
                )
            log_probs, _ = model(
                audio.unsqueeze(0).to(model.device), torch.tensor([len(audio)]).to(model.device)
            )
            return _numbers(log_probs[0].cpu(), name)
        parts = []
        chunk_s, overlap_s = config.sizes_s(model.config.longest_s)
        chunks = split_chunks(
            model.encoder_frames(duration_s), round(chunk_s / model.frame_s), round(overlap_s / model.frame_s)
        )
        banks = model.filter_banks
        hop = banks.shift_samples * model.config.model.subsampling
        for first in range(0, len(chunks), CHUNKS_PER_BATCH):
            batch = chunks[first : first + CHUNKS_PER_BATCH]
            audios = [
                audio[c.start * hop : c.end * hop + banks.window_samples - banks.shift_samples] for c in batch
            ]
            lengths = torch.tensor([len(x) for x in audios])
            padded = pad_sequence(audios, batch_first=True)
            log_probs, _ = model(padded.to(model.device), lengths.to(model.device))
            for chunk, own in zip(batch, log_probs, strict=True):
                parts.append(own[chunk.keep_start - chunk.start : chunk.keep_end - chunk.start].cpu())
        return _numbers(torch.cat(parts), name)


def _numbers(log_probs_TV: Tensor, name: str) -> Tensor:
    if log_probs_TV.isnan().any():
        raise UserError(
            f"{name}: expected log-probabilities, found NaN (samples far beyond 1, or a broken model?)"
        )
    return log_probs_TV


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


def split_stretches(log_probs_TV: Tensor, frame_s: float) -> list[int]:
    """Return the boundaries of the stretches to search: frame 0, the middles of long pauses, and T.

    A recording shorter than the longest stretch is not split.
    """
    T = len(log_probs_TV)
    shortest, longest = (max(1, round(seconds / frame_s)) for seconds in STRETCH_S)
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


def decode_stretches(decoder: Decoder, log_probs_TV: Tensor, frame_s: float) -> TokenPath:
    """Search a recording in stretches, several per batch, and return one path.

    The longest stretch bounds the memory of the search.
    """
    cuts = split_stretches(log_probs_TV, frame_s)
    stretches = [log_probs_TV[start:end] for start, end in itertools.pairwise(cuts)]
    found: list[TokenPath] = []
    for first in range(0, len(stretches), STRETCHES_PER_BATCH):
        batch = stretches[first : first + STRETCHES_PER_BATCH]
        lengths = torch.tensor([len(x) for x in batch])
        found += search(decoder, pad_sequence(batch, batch_first=True), lengths)
    return join_paths(found, cuts)


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
