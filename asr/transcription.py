"""From the samples of a recording of any length to its transcript, in one pass or in overlapping chunks."""

import itertools
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.confidence import certainty, usual_limit, weigh
from asr.config import option
from asr.ctc import BLANK
from asr.data.recording import Samples, is_silent
from asr.errors import UserError
from asr.search.decoder import BeamConfig, Decoder, build_decoder, text_of
from asr.search.path import TokenPath, Word
from asr.search.tune import tuned
from asr.transcript import Transcript, split_segments, timed_words

if TYPE_CHECKING:
    from asr.recognizer import Recognizer

log = logging.getLogger(__name__)

MODES = ("onepass", "chunked")
CHUNKS_AT_ONCE = 4
LONGEST_CHUNK_S = 20.0
LONGER_THAN_TRAINING = 4.0  # such a factor is told

# A search reads stretches of the recording: cut in the longest pause that ends them in this range.
STRETCH_S = (10.0, 30.0)
STRETCHES_AT_ONCE = 8


@dataclass
class TranscriptionConfig:
    """How recordings are transcribed."""

    mode: str = option("onepass", help="onepass: the encoder sees the whole recording | chunked")
    chunk_s: float = option(
        0.0,
        help="mode=chunked: length of a chunk; 0: as long as training's longest audio, at most 20 s",
        unit="s",
    )
    overlap_s: float = option(
        -1.0,
        help="mode=chunked: what neighbours share, merged at its middle; −1: a fifth of a chunk",
        unit="s",
    )
    channels: str = option("mix", help="mix: the mean of all | separate: a transcript for each")
    decoder: str = option("greedy", help="greedy | beam | prefix")
    beam: BeamConfig = field(default_factory=BeamConfig)
    min_confidence: float = option(
        -1.0,
        help="what is less certain is marked, 0 … 1; −1: what 95 % of the dev set reaches at such a length",
    )

    def check(self) -> None:
        """Raise UserError where options don't fit each other."""
        if self.mode not in MODES:
            raise UserError(f"mode={self.mode!r}: expected one of {MODES}")
        if self.chunk_s < 0:
            raise UserError(f"chunk_s={self.chunk_s}: expected seconds, or 0 for training's longest audio")
        if self.chunk_s and self.overlap_s > self.chunk_s / 2:
            raise UserError(f"overlap_s={self.overlap_s}: expected at most half of chunk_s={self.chunk_s}")
        if self.beam.nbest != 1:
            raise UserError(
                f"beam.nbest={self.beam.nbest}: a transcript has one text, lists are asr decode's"
            )

    def sizes_s(self, longest_s: float) -> tuple[float, float]:
        """Return chunk and overlap in seconds for a model that was trained on audio of up to `longest_s`."""
        chunk_s = self.chunk_s or min(LONGEST_CHUNK_S, longest_s or LONGEST_CHUNK_S)
        return chunk_s, min(chunk_s / 5 if self.overlap_s < 0 else self.overlap_s, chunk_s / 2)


def transcribe_samples(
    recognizer: "Recognizer",
    samples: Samples,
    config: TranscriptionConfig,
    name: str,
    decoder: Decoder | None = None,
    channel: int | None = None,
) -> Transcript:
    """Transcribe one channel.

    Args:
        recognizer: in evaluation mode.
        samples: [samples] at the model's rate.
        config: how.
        name: of the file, for messages.
        decoder: built from `config` before; None: built here, by `tuned_decoder`.
        channel: number of the channel, if there are several.

    Raises:
        UserError: shorter than one frame.
    """
    config.check()
    duration_s = len(samples) / recognizer.config.features.sample_rate
    if recognizer.encoder_frames(duration_s) == 0:
        raise UserError(f"{name}: {1000 * duration_s:.1f} ms is shorter than one frame")
    if is_silent(samples):
        log.warning("%s: nothing but silence", name)
        return Transcript("", [], [], [], [], duration_s, low_confidence=True, channel=channel)
    log_probs_TV = emissions(recognizer, samples, config, name)
    decoder = decoder or tuned_decoder(recognizer, config)[0]
    path = decode_stretches(decoder, log_probs_TV, recognizer.frame_s)
    tokens = recognizer.tokenizer.tokens(path.ids)
    times_s = [round(frame * recognizer.frame_s, 3) for frame in path.frames]
    text = text_of(path, recognizer.tokenizer)
    certain, limit = certain_of(recognizer, log_probs_TV, config)
    if certain < limit:
        log.warning(
            "%s: low confidence (%.2f, usually above %.2f): unlike what the model was trained on?",
            name,
            certain,
            limit,
        )

    def certain_between(start_s: float, end_s: float) -> tuple[float, float]:
        first, last = (round(seconds / recognizer.frame_s) for seconds in (start_s, end_s))
        return certain_of(recognizer, log_probs_TV[first : max(last, first + 1)], config)

    return Transcript(
        text=" ".join(tokens) if text is None else text,
        tokens=tokens,
        times_s=times_s,
        confidence=[round(x, 4) for x in path.confidences],
        words=None if path.words is None else [(word.word, times_s[word.start]) for word in path.words],
        duration_s=duration_s,
        segments=split_segments(timed_words(path, recognizer.tokenizer, recognizer.frame_s), certain_between),
        certainty=round(certain, 4),
        usual_certainty=round(limit, 4),
        low_confidence=certain < limit,
        channel=channel,
    )


def tuned_decoder(recognizer: "Recognizer", config: TranscriptionConfig) -> tuple[Decoder, str | None]:
    """Build the decoder, with the weights that were tuned for it where `config.beam` leaves them open.

    Returns:
        The decoder, and where its weights come from; None: options and defaults alone.

    Raises:
        UserError: see `build_decoder`; a record of tuning that can't be read.
    """
    beam, source = config.beam, None
    if recognizer.run_folder is not None:
        beam, source = tuned(recognizer.run_folder, config.decoder, beam)
    return build_decoder(config.decoder, recognizer.tokenizer, beam), source


def certain_of(
    recognizer: "Recognizer", log_probs_TV: Tensor, config: TranscriptionConfig
) -> tuple[float, float]:
    """Return the certainty of a recording or a part of it, and the one below which it is marked."""
    usual = recognizer.config.usual
    evidence = weigh(log_probs_TV, recognizer.frame_s, recognizer.label_model)
    limit = usual_limit(evidence, usual) if config.min_confidence < 0 else config.min_confidence
    return certainty(evidence, usual), limit


@torch.inference_mode()
def emissions(
    recognizer: "Recognizer", samples: Samples, config: TranscriptionConfig, name: str = "recording"
) -> Tensor:
    """Return the log-probabilities [T, V] of a recording, on the CPU.

    In one pass every frame attends to the whole recording; features are computed in blocks, and with the
    linear mechanisms memory grows with the recording and no faster. In chunks every frame attends to its
    chunk, which is normalised as an utterance is, and of two overlapping chunks each gives the half that
    is nearer to its own middle.
    """
    device = recognizer.head.projection.weight.device
    rate = recognizer.config.features.sample_rate
    audio = torch.from_numpy(samples)
    if config.mode == "onepass":
        _warn_of_length(recognizer, len(audio) / rate, name)
        log_probs, _ = recognizer.eval()(audio.unsqueeze(0).to(device), torch.tensor([len(audio)]).to(device))
        return log_probs[0].cpu()
    parts = []
    frames = recognizer.encoder_frames(len(audio) / rate)
    chunk_s, overlap_s = config.sizes_s(recognizer.config.longest_s)
    chunks = split_chunks(frames, round(chunk_s / recognizer.frame_s), round(overlap_s / recognizer.frame_s))
    banks = recognizer.filter_banks
    hop = banks.shift_samples * recognizer.config.model.subsampling
    for first in range(0, len(chunks), CHUNKS_AT_ONCE):
        batch = chunks[first : first + CHUNKS_AT_ONCE]
        audios = [
            audio[c.start * hop : c.end * hop + banks.window_samples - banks.shift_samples] for c in batch
        ]
        lengths = torch.tensor([len(x) for x in audios])
        log_probs, _ = recognizer.eval()(
            pad_sequence(audios, batch_first=True).to(device), lengths.to(device)
        )
        for chunk, own in zip(batch, log_probs, strict=True):
            parts.append(own[chunk.keep_start - chunk.start : chunk.keep_end - chunk.start].cpu())
    return torch.cat(parts)


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, of a GPU or of the machine."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)


@dataclass(frozen=True)
class Chunk:
    """Encoder frames start … end − 1 are computed together; keep_start … keep_end − 1 are kept of them."""

    start: int
    end: int
    keep_start: int
    keep_end: int


def split_chunks(frames: int, size: int, overlap: int) -> list[Chunk]:
    """Cover `frames` encoder frames with chunks of `size` frames that keep each of them once.

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
    """Return where a search may begin anew: the middles of long pauses, 0 and T among them.

    What is shorter than the longest stretch stays whole.
    """
    T = len(log_probs_TV)
    shortest, longest = (max(1, round(seconds / frame_s)) for seconds in STRETCH_S)
    frame = torch.arange(T)
    speech = log_probs_TV.argmax(dim=-1) != BLANK
    before = frame - torch.where(speech, frame, -T).cummax(dim=0).values
    after = torch.where(speech, frame, 2 * T).flip(0).cummin(dim=0).values.flip(0) - frame
    depth = torch.minimum(before, after)  # frames to the nearest label: greatest in the middle of a pause
    cuts = [0]
    while T - cuts[-1] > longest:
        first = cuts[-1] + shortest
        cuts.append(first + int(depth[first : cuts[-1] + longest].argmax()))
    return [*cuts, T]


def decode_stretches(decoder: Decoder, log_probs_TV: Tensor, frame_s: float) -> TokenPath:
    """Search a recording stretch by stretch, several at once, and return one path.

    What a search keeps grows with its stretch and not with the recording.
    """
    cuts = split_stretches(log_probs_TV, frame_s)
    stretches = [log_probs_TV[start:end] for start, end in itertools.pairwise(cuts)]
    found: list[TokenPath] = []
    for first in range(0, len(stretches), STRETCHES_AT_ONCE):
        batch = stretches[first : first + STRETCHES_AT_ONCE]
        found += decoder(pad_sequence(batch, batch_first=True), torch.tensor([len(x) for x in batch]))
    return join_paths(found, cuts)


def join_paths(paths: list[TokenPath], starts: list[int]) -> TokenPath:
    """Join the paths of successive stretches that begin at the frames `starts`."""
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


def _warn_of_length(recognizer: "Recognizer", duration_s: float, name: str) -> None:
    longest_s = recognizer.config.longest_s
    if longest_s and duration_s > LONGER_THAN_TRAINING * longest_s:
        log.warning(
            "%s: lasts %.0f s, training saw %.0f s at most: compare with mode=chunked, "
            "or train with data.concatenate_s",
            name,
            duration_s,
            longest_s,
        )
