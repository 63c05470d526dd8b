"""Transcription of many recordings: groups of short ones are read ahead and encoded together, in threads."""

import logging
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from asr.config import check
from asr.data.recording import Samples, is_silent
from asr.data.sampler import plan_by_length
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel
from asr.model.threads import in_threads
from asr.search.decoder import Decoder
from asr.search.path import TokenPath
from asr.shards import Shard
from asr.text.tokenizer import Tokenizer
from asr.transcription.encoding import emissions, encode, finite, is_out_of_memory
from asr.transcription.options import LONGER_THAN_TRAINING, LONGEST_CHUNK_S, TranscriptionConfig
from asr.transcription.run import decode_stretches, transcript_of
from asr.transcription.transcript import Transcript

log = logging.getLogger(__name__)

GROUP = 16  # recordings read together, sorted by length and encoded in batches
GROUP_BYTES = 4 << 20  # a larger recording is transcribed alone
SECONDS_PER_BATCH = 60.0  # padding included
ENCODING_SHARE = 0.9  # share of the encoder in the time of a transcription, for progress


@dataclass(frozen=True)
class Source:
    """A recording to read.

    Attributes:
        name: name in messages.
        size: size of the file or array in bytes; None: unknown, as of a stream.
        read: returns the [samples] of each channel at the model's rate.
    """

    name: str
    size: int | None
    read: Callable[[], list[Samples]]


@dataclass
class _Channel:
    """A channel of a recording; `path` is what the search has found, or its error."""

    name: str
    number: int | None
    samples: Samples
    path: TokenPath | Exception | None = None


_Channels = list[_Channel] | Exception
Outcome = list[Transcript] | Exception


@dataclass(frozen=True)
class Transcriber:
    """Transcribes recordings with a model and a decoder.

    Attributes:
        model: acoustic model.
        tokenizer: tokenizer of the model.
        config: mode, channels, chunks and minimum confidence.
        decoder: decoder, built by `build_decoder`.
    """

    model: AcousticModel
    tokenizer: Tokenizer
    config: TranscriptionConfig
    decoder: Decoder

    def __call__(
        self,
        sources: Sequence[Source],
        shard: Shard | None = None,
        done: Container[int] = (),
        advance: Callable[[float], None] = lambda share: None,
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield each recording's position, and the transcripts of its channels or the error that it raised.

        Args:
            sources: recordings.
            shard: only the groups of a shard, so that each batch is the same without shards.
            done: positions of recordings; a group of these alone is left out.
            advance: called with the share of a recording done since the last call; the shares of each add
                up to 1 unless it raises an error.
        """
        check(self.config)
        work = self if self.config.decoder == "greedy" else self._searching_in_turn()
        groups = list(group_positions(sources))
        own = shard.of(groups) if shard else groups
        left = [group for group in own if not all(position in done for position in group)]
        for alone, together in groupby(left, key=lambda group: len(group) == 1):
            positions = list(together)
            chosen = [[sources[i] for i in group] for group in positions]
            searched = (
                ([_read(source)] for (source,) in chosen)
                if alone
                else in_threads(self.model, _read_all, work._search, chosen)
            )
            for group, found in zip(positions, searched, strict=True):
                for position, channels in zip(group, found, strict=True):
                    yield position, work._finish(channels, advance)

    def _searching_in_turn(self) -> "Transcriber":
        """Return the same with a decoder that one thread uses at a time; beam searches have state."""
        lock = threading.Lock()

        def decoder(*arguments: torch.Tensor) -> list[TokenPath]:
            with lock:
                return self.decoder(*arguments)

        return Transcriber(self.model, self.tokenizer, self.config, decoder)

    def _search(self, group: list[_Channels]) -> list[_Channels]:
        """Add the paths of short channels, similar lengths in a batch."""
        channels = [channel for own in group if not isinstance(own, Exception) for channel in own]
        short = [channel for channel in channels if self._is_short(channel.samples)]
        samples = np.array([len(channel.samples) for channel in short], dtype=np.int64)
        budget = round(SECONDS_PER_BATCH * self.model.sample_rate)
        for plan in plan_by_length(samples, budget, np.argsort(-samples, kind="stable")) if short else []:
            self._search_batch([short[i] for i in plan.tolist()])
        return group

    def _is_short(self, samples: Samples) -> bool:
        """Return whether to encode [samples] in a batch."""
        duration_s = len(samples) / self.model.sample_rate
        return (
            duration_s <= LONGER_THAN_TRAINING * (self.model.config.longest_s or LONGEST_CHUNK_S)
            and self.config.mode != "chunked"
            and self.model.encoder_frames(duration_s) > 0
            and not is_silent(samples)
        )

    def _search_batch(self, channels: list[_Channel]) -> None:
        try:
            encoded = encode(self.model, [torch.from_numpy(channel.samples) for channel in channels])
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            for channel in channels:
                if len(channels) > 1:
                    self._search_batch([channel])
                else:
                    channel.path = error
            return
        sound = []
        for channel, log_probs_TV in zip(channels, encoded, strict=True):
            try:
                sound.append((channel, finite(log_probs_TV, channel.name)))
            except UserError as error:
                channel.path = error
        recordings = [log_probs_TV for _, log_probs_TV in sound]
        paths = decode_stretches(self.decoder, recordings, self.model.frame_s)
        for (channel, _), path in zip(sound, paths, strict=True):
            channel.path = path

    def _finish(self, channels: _Channels, advance: Callable[[float], None]) -> Outcome:
        """Return the transcripts of a recording; transcribe channels that were not searched in a batch."""
        if isinstance(channels, Exception):
            return channels
        share = 1 / len(channels)
        transcripts = []
        for channel in channels:
            try:
                transcripts.append(self._transcript(channel, lambda own: advance(own * share)))
            except (UserError, RuntimeError, MemoryError) as error:
                return error
        return transcripts

    def _transcript(self, channel: _Channel, advance: Callable[[float], None]) -> Transcript:
        model, tokenizer, config, samples = self.model, self.tokenizer, self.config, channel.samples
        if isinstance(channel.path, Exception):
            raise channel.path
        duration_s = len(samples) / model.sample_rate
        path = channel.path
        if path is not None:
            advance(1.0)
        elif model.encoder_frames(duration_s) == 0:
            raise UserError(f"{channel.name}: {1000 * duration_s:.1f} ms is shorter than one frame")
        elif is_silent(samples):
            log.warning("%s: the recording is silent", channel.name)
            advance(1.0)
            return Transcript("", [], [], [], [], duration_s, low_confidence=True, channel=channel.number)
        else:
            log_probs_TV = emissions(
                model, samples, config, channel.name, lambda share: advance(ENCODING_SHARE * share)
            )
            (path,) = decode_stretches(
                self.decoder,
                [log_probs_TV],
                model.frame_s,
                lambda share: advance((1 - ENCODING_SHARE) * share),
            )
        return transcript_of(path, model, tokenizer, config, duration_s, channel.name, channel.number)


def group_positions(sources: Sequence[Source]) -> list[list[int]]:
    """Divide recordings, in order, into groups to read together; large ones and streams are alone."""
    groups: list[list[int]] = []
    room = 0
    for position, source in enumerate(sources):
        size = GROUP_BYTES + 1 if source.size is None else source.size
        if not groups or size > room or len(groups[-1]) == GROUP:
            groups.append([])
            room = GROUP_BYTES
        groups[-1].append(position)
        room -= size
    return groups


def _read(source: Source) -> _Channels:
    try:
        recording = source.read()
    except (UserError, RuntimeError, MemoryError) as error:
        return error
    if len(recording) == 1:
        return [_Channel(source.name, None, recording[0])]
    return [
        _Channel(f"{source.name}, channel {number}", number, samples)
        for number, samples in enumerate(recording, start=1)
    ]


def _read_all(group: Sequence[Source]) -> list[_Channels]:
    return [_read(source) for source in group]
