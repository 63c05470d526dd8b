"""Recognition of a stream: blocks of samples → words with times, as soon as they are final."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import soxr
import torch
from numpy.typing import NDArray

from asr.data.audio_file import Samples, check_rate, checked_samples, is_silent
from asr.data.recording import as_floats
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel
from asr.model.streaming import StreamingModel, why_not_streamed
from asr.search.path import NO_LABELS, TimedWord, TokenPath, join_paths, part, words_of
from asr.search.streaming import SearchStream
from asr.text.tokenizer import Tokenizer
from asr.transcription.posteriors import checked_posteriors
from asr.transcription.transcript import timed_words

NAME = "stream"  # name in messages


def check_streamed(model: AcousticModel, name: str) -> None:
    """Raise UserError unless a model needs only a bounded part of a recording at a time.

    The message begins with `name`, and says which options to train with instead.
    """
    if reasons := why_not_streamed(model):
        raise UserError(f"{name}: this model can't recognise audio as it comes: {'; '.join(reasons)}")


class Stream:
    """Recognition of one recording as it arrives.

    A word is final when no later audio can change it, which isn't before the next word begins. The words are
    those of `Recognizer.transcribe`, whatever the size of blocks. Memory and work per block don't grow with
    the stream.

    Args:
        model: acoustic model that passes `check_streamed`.
        tokenizer: tokenizer of the model.
        search: search of this recording.
        sample_rate: sample rate of the blocks in Hz; resampled if it isn't the model's.

    Example:
        >>> stream = recognizer.stream()  # doctest: +SKIP
        >>> for block in microphone:  # doctest: +SKIP
        ...     print(*(word.word for word in stream.push(block)))
        >>> print(*(word.word for word in stream.close()))  # doctest: +SKIP
    """

    def __init__(
        self, model: AcousticModel, tokenizer: Tokenizer, search: SearchStream, sample_rate: int
    ) -> None:
        check_rate(sample_rate, NAME)
        self.sample_rate = sample_rate
        self._tokenizer, self._search = tokenizer, search
        self._model = StreamingModel(model)
        self._frame_s, self._model_rate = model.frame_s, model.sample_rate
        self._resampler = (
            None
            if sample_rate == model.sample_rate
            else soxr.ResampleStream(sample_rate, model.sample_rate, 1, dtype="float32")
        )
        self._labels = NO_LABELS  # labels of the word that isn't final
        # Words of a recording that has been silent so far; None: it hasn't.
        self._silent: list[TimedWord] | None = []
        self._closed = False

    @property
    def look_ahead_s(self) -> float:
        """Audio in seconds that the model needs after a frame; the search also waits for the next word."""
        return self._model.look_ahead_samples / self._model_rate

    def push(self, block: NDArray[Any] | torch.Tensor) -> list[TimedWord]:
        """Return the words that become final with a block of samples.

        Args:
            block: [samples], any number of floats in −1 … 1 or signed integers.

        Raises:
            UserError: another shape or type, a sample that isn't finite, or the stream is closed.
        """
        samples = as_floats(block, NAME)
        if len(samples) != 1:
            raise UserError(
                f"{NAME}: expected blocks of one channel, found {len(samples)}: a stream for each"
            )
        return self._next(checked_samples(samples[0], NAME) if samples.size else samples[0], last=False)

    def close(self) -> list[TimedWord]:
        """End the recording, and return its last words."""
        return self._next(np.zeros(0, dtype=np.float32), last=True)

    def words(self, blocks: Iterable[NDArray[Any] | torch.Tensor]) -> Iterator[TimedWord]:
        """Yield the words of blocks as they become final, and close the stream after the last."""
        for block in blocks:
            yield from self.push(block)
        yield from self.close()

    @property
    def pending(self) -> list[TimedWord]:
        """The words after the final ones, as they would be if the recording ended here."""
        path = self._search.pending()
        path = path if path.words is not None else join_paths([self._labels, path])
        words = timed_words(path, self._tokenizer, self._frame_s)
        return [] if self._silent is not None else words

    def _next(self, samples: Samples, last: bool) -> list[TimedWord]:
        if self._closed:
            raise UserError(f"{NAME}: closed; start another for the next recording")
        self._closed = last
        if self._resampler:
            samples = self._resampler.resample_chunk(samples[:, None], last=last)[:, 0]
        log_probs_TV = checked_posteriors(self._model.push(torch.from_numpy(samples), last), NAME)
        words = self._final(self._search.push(log_probs_TV, last), last)
        if self._silent is not None:
            self._silent += words
            if not len(samples) or is_silent(samples):
                return []
            words, self._silent = self._silent, None
        return words

    def _final(self, path: TokenPath, last: bool) -> list[TimedWord]:
        """Return the words that end with new labels."""
        if path.words is not None:
            return path.timed(path.words, self._frame_s)
        self._labels = labels = join_paths([self._labels, path])
        words = words_of(labels, self._tokenizer)
        if words is None:  # phones without words
            self._labels = NO_LABELS
            return timed_words(labels, self._tokenizer, self._frame_s)
        final = [word for word in words if last or word.end < len(labels.ids)]
        gaps = not words and self._tokenizer.unit == "character"
        start = final[-1].end if final else len(labels.ids) if gaps else 0
        self._labels = part(labels, start, len(labels.ids))
        return labels.timed(final, self._frame_s)
