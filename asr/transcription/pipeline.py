"""The pipeline: reads and batches sources, computes their posteriors and searches them, in threads."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from asr.data.audio_file import Samples, is_silent
from asr.data.cuts import Cuts
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel, evaluating
from asr.transcription.batches import (
    SECONDS_PER_BATCH,
    encoded_together,
    groups_by_length,
    longest_like_training_s,
)
from asr.transcription.options import EncodingOptions
from asr.transcription.posteriors import (
    Posteriors,
    checked_posteriors,
    encode,
    is_out_of_memory,
    posteriors,
)
from asr.transcription.sources import CutSource, Source

READERS = 2  # threads that read the next recordings while others are encoded
ENCODING_SHARE = 0.9  # assumed fraction of a long recording's time spent in the encoder, for progress

Item = TypeVar("Item")
Content = TypeVar("Content")
Result = TypeVar("Result")
Found = TypeVar("Found")
Advance = Callable[[float], None]


@dataclass(frozen=True)
class Channel:
    """A channel of a source; each channel is encoded and searched separately.

    Attributes:
        source: source of the channel.
        position: position of the source among all sources.
        number: number of the channel, from 1; None: the source has a single channel.
        samples: [samples] at the model's sample rate.
    """

    source: Source
    position: int
    number: int | None
    samples: Samples

    @property
    def name(self) -> str:
        """Name in messages."""
        return self.source.name if self.number is None else f"{self.source.name}, channel {self.number}"


# Maps channels and the log-probabilities of each, [T, V] on the CPU, to the result of each, or its error.
# Progress is reported in fractions that add up to 1.
Search = Callable[[Sequence[Channel], list[Tensor], Advance], Sequence[Found | UserError]]


@dataclass
class _Work(Generic[Found]):
    """A channel, and its result or error; None: it has not been searched."""

    channel: Channel
    found: Found | Exception | None = None


@dataclass(frozen=True)
class Pipeline(Generic[Found]):
    """Encodes and searches recordings of any length, short ones in batches.

    Attributes:
        model: acoustic model.
        options: mode and chunks of long recordings.
        search: search; called by several threads.
        skip_silent: whether to skip silent channels.
    """

    model: AcousticModel
    options: EncodingOptions
    search: Search[Found]
    skip_silent: bool = False

    def __call__(
        self,
        sources: Sequence[Source],
        groups: list[list[int]],
        advance: Advance = lambda share: None,
    ) -> Iterator[tuple[int, list[tuple[Channel, Found | None]] | Exception]]:
        """Yield each source's position, and its channels with their results, or the error that it raised.

        A group with a single source is read when its turn comes, because the source may be large; other
        groups are read ahead. The result of a skipped silent channel is None.

        Args:
            sources: recordings.
            groups: positions of the sources that are read together, in the order of the results.
            advance: called with the fraction of a source done since the last call; a source's fractions add
                up to 1 unless it raises an error.
        """
        read = partial(_read_group, self.model.sample_rate, sources)
        for alone, together in groupby(groups, key=lambda group: len(group) == 1):
            chosen = list(together)
            searched = (
                (_unsearched(read(group)) for group in chosen)
                if alone
                else in_threads(self.model, read, self._search_short, chosen)
            )
            for group, outcomes in zip(chosen, searched, strict=True):
                for position, outcome in zip(group, outcomes, strict=True):
                    yield position, self._finish(outcome, advance)

    def _search_short(self, group: list[list[Channel] | Exception]) -> "list[list[_Work[Found]] | Exception]":
        """Search the short channels of a group in batches of similar length."""
        work_of: list[list[_Work[Found]] | Exception] = _unsearched(group)
        work = [x for works in work_of if not isinstance(works, Exception) for x in works]
        short = [x for x in work if self._is_short(x.channel)]
        samples = np.array([len(x.channel.samples) for x in short], dtype=np.int64)
        for batch in groups_by_length(samples, round(SECONDS_PER_BATCH * self.model.sample_rate)):
            self._search_batch([short[i] for i in batch])
        return work_of

    def _is_short(self, channel: Channel) -> bool:
        """Return whether to encode a channel in a batch."""
        return (
            encoded_together(self._duration_s(channel), longest_like_training_s(self.model), self.options)
            and self._frames(channel) > 0
            and not self._is_skipped(channel)
        )

    def _duration_s(self, channel: Channel) -> float:
        return len(channel.samples) / self.model.sample_rate

    def _frames(self, channel: Channel) -> int:
        return self.model.encoder_frames(self._duration_s(channel))

    def _is_skipped(self, channel: Channel) -> bool:
        return self.skip_silent and is_silent(channel.samples)

    def _search_batch(self, batch: list[_Work[Found]]) -> None:
        try:
            encoded = encode(self.model, [x.channel.samples for x in batch]).each()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            for x in batch:
                if len(batch) > 1:
                    self._search_batch([x])
                else:
                    x.found = error
            return
        sound = []
        for x, log_probs_TV in zip(batch, encoded, strict=True):
            try:
                sound.append((x, checked_posteriors(log_probs_TV, x.channel.name).cpu()))
            except UserError as error:
                x.found = error
        results = self.search([x.channel for x, _ in sound], [own for _, own in sound], lambda share: None)
        for (x, _), result in zip(sound, results, strict=True):
            x.found = result

    def _finish(
        self, work: list[_Work[Found]] | Exception, advance: Advance
    ) -> list[tuple[Channel, Found | None]] | Exception:
        """Return the results of a source; search the channels that were not searched in a batch."""
        if isinstance(work, Exception):
            return work
        try:
            return [(x.channel, self._found(x, lambda share: advance(share / len(work)))) for x in work]
        except (UserError, RuntimeError, MemoryError) as error:
            return error

    def _found(self, work: _Work[Found], advance: Advance) -> Found | None:
        channel = work.channel
        if work.found is not None:
            advance(1.0)
            return _raised(work.found)
        if self._frames(channel) == 0:
            duration_ms = 1000 * self._duration_s(channel)
            raise UserError(f"{channel.name}: {duration_ms:.1f} ms is shorter than one frame")
        if self._is_skipped(channel):
            advance(1.0)
            return None
        log_probs_TV = posteriors(
            self.model,
            channel.samples,
            self.options,
            channel.name,
            lambda share: advance(ENCODING_SHARE * share),
        )
        (found,) = self.search([channel], [log_probs_TV], lambda share: advance((1 - ENCODING_SHARE) * share))
        return _raised(found)


@dataclass(frozen=True)
class Encoded:
    """A batch of utterances.

    Attributes:
        positions: [B] positions of the utterances.
        posteriors: log-probabilities.
        encode_s: time of features and encoder in seconds, divided by the number of groups encoded at the same
            time.
    """

    positions: list[int]
    posteriors: Posteriors
    encode_s: float


def encoded_cuts(model: AcousticModel, cuts: Cuts, groups: list[list[int]]) -> Iterator[Encoded]:
    """Yield each group of utterances, encoded as one batch in one pass; the first error is raised.

    For searches that run in other processes, or on the device of the log-probabilities.

    Args:
        model: acoustic model.
        cuts: utterances, with one channel each.
        groups: positions of the utterances of each batch.
    """
    sources = [CutSource(cuts, i) for i in range(len(cuts))]

    def encode_group(group: list[list[Channel] | Exception]) -> Encoded:
        channels = [channel for source in group for channel in _raised(source)]
        started = time.perf_counter()
        batch = encode(model, [channel.samples for channel in channels])
        for channel, log_probs_TV in zip(channels, batch.each(), strict=True):
            checked_posteriors(log_probs_TV, channel.name)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)  # otherwise encoding would count as search time
        positions = [channel.position for channel in channels]
        return Encoded(positions, batch, (time.perf_counter() - started) / beside)

    beside = encoders(model, len(groups))
    return in_threads(model, partial(_read_group, model.sample_rate, sources), encode_group, groups)


def _read_group(
    sample_rate: int, sources: Sequence[Source], positions: list[int]
) -> list[list[Channel] | Exception]:
    """Return the channels of each source, or the error that it raised."""
    channels_of: list[list[Channel] | Exception] = []
    for position in positions:
        source = sources[position]
        try:
            channels = source.read(sample_rate)
        except (UserError, RuntimeError, MemoryError) as error:
            channels_of.append(error)
            continue
        several = len(channels) > 1
        channels_of.append(
            [
                Channel(source, position, number if several else None, samples)
                for number, samples in enumerate(channels, start=1)
            ]
        )
    return channels_of


def _unsearched(group: list[list[Channel] | Exception]) -> "list[list[_Work[Found]] | Exception]":
    return [
        source if isinstance(source, Exception) else [_Work(channel) for channel in source]
        for source in group
    ]


def _raised(result: Result | Exception) -> Result:
    """Return a result, or raise it if it is an error."""
    if isinstance(result, Exception):
        raise result
    return result


def encoders(model: AcousticModel, items: int) -> int:
    """Return the number of items that are encoded at the same time.

    On a CPU, it is PyTorch's number of threads, one per item: several threads working on one batch would wait
    for each other after every operation. On a GPU, it is one.
    """
    return max(1, min(torch.get_num_threads(), items)) if model.device.type == "cpu" else 1


def in_threads(
    model: AcousticModel,
    read: Callable[[Item], Content],
    encode: Callable[[Content], Result],
    items: Sequence[Item],
) -> Iterator[Result]:
    """Yield encode(read(item)) of each item in order.

    Args:
        model: acoustic model used by `encode`; in evaluation mode meanwhile.
        read: loads an item, while others are encoded.
        encode: maps the value of `read` to a result.
        items: arguments of `read`.
    """
    threads, beside = torch.get_num_threads(), encoders(model, len(items))
    turn = threading.Semaphore(beside)

    def work(item: Item) -> Result:
        content = read(item)
        with turn:
            return encode(content)

    waiting: deque[Future[Result]] = deque()
    # PyTorch's number of threads is set for the calling thread and for threads started later.
    pool = ThreadPoolExecutor(
        beside + READERS, initializer=torch.set_num_threads, initargs=(threads // beside,)
    )
    try:
        with evaluating(model):
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > beside + READERS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
