"""Parallel search: decodes log-probabilities in several processes; results keep their order."""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asr.errors import UserError, uninterrupted
from asr.parallel import end_with_parent, kill_workers, worker_context
from asr.search.decoder import Decoder, Search, Weights
from asr.search.path import TokenPath
from asr.search.run import search_batch
from asr.text.tokenizer import Tokenizer, tokenizer_from_state

WAITING = 16  # utterances queued per process, which bounds the memory for log-probabilities


@dataclass(frozen=True)
class Found:
    """The result of an utterance.

    Attributes:
        key: the utterance's key, as given to `put`.
        path: result of the search.
        cpu_s: CPU time of the search in seconds.
    """

    key: Any
    path: TokenPath
    cpu_s: float


class SearchPool:
    """Decodes utterances in `jobs` processes, or in the current one if `jobs` is 1.

    Example:
        >>> with SearchPool(Beam(), tokenizer, jobs=4) as pool:  # doctest: +SKIP
        ...     pool.put(keys, log_probs_BTV, lengths_B)
        ...     found = list(pool.results())
    """

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, jobs: int = 1, topology: str = "ctc") -> None:
        """Build the search here, so that its errors are raised before any process starts."""
        self.search = decoder.build(tokenizer, topology)
        self._weights: Weights | None = None
        self._jobs = jobs
        self._done: deque[Found | Future[Found]] = deque()
        self._executor: ProcessPoolExecutor | None = None
        if jobs > 1:
            self._executor = ProcessPoolExecutor(
                jobs,
                worker_context(__name__),
                initializer=_start_worker,
                initargs=(decoder, tokenizer.state(), topology),
            )

    def __enter__(self) -> "SearchPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._executor is None:
            return
        if kind is not None:
            kill_workers()
        self._executor.shutdown(cancel_futures=True)

    def reweight(self, weights: Weights) -> None:
        """Use other weights for all later utterances."""
        self._weights = weights
        if self._executor is None:
            self.search = self.search.with_weights(weights)

    def put(self, keys: Sequence[Any], log_probs_BTV: Tensor, lengths_B: Tensor) -> None:
        """Decode a batch or queue it for decoding.

        Args:
            keys: [B] keys that identify the utterances in the results.
            log_probs_BTV: [B, T, V] log-probabilities, blank at index 0.
            lengths_B: [B] valid frames.
        """
        if self._executor is None:
            started = time.thread_time()  # other threads encode meanwhile
            paths = search_batch(self.search, log_probs_BTV, lengths_B)
            cpu_s = (time.thread_time() - started) / max(len(keys), 1)
            self._done += [Found(key, path, cpu_s) for key, path in zip(keys, paths, strict=True)]
            return
        log_probs_BTV = log_probs_BTV.detach().float().cpu()
        for key, log_probs_TV, length in zip(keys, log_probs_BTV, lengths_B.tolist(), strict=True):
            emissions = log_probs_TV[:length].numpy()
            with uninterrupted():  # the executor may start a process
                self._done.append(self._executor.submit(_search, key, emissions, self._weights))

    def ready(self) -> Iterator[Found]:
        """Yield finished results in order; wait only if the queue is too long."""
        while self._done:
            first = self._done[0]
            if isinstance(first, Future) and not first.done() and len(self._done) <= WAITING * self._jobs:
                return
            yield _result(self._done.popleft())

    def results(self) -> Iterator[Found]:
        """Yield all remaining results in order."""
        while self._done:
            yield _result(self._done.popleft())


def _result(outcome: "Found | Future[Found]") -> Found:
    try:
        return outcome.result() if isinstance(outcome, Future) else outcome
    except BrokenProcessPool as error:
        raise UserError("a search process was killed, perhaps for lack of memory: try fewer jobs") from error


class _Worker:
    """State of a worker process."""

    search: Search
    weights: Weights | None = None


def _start_worker(decoder: Decoder, tokenizer: dict[str, Any], topology: str) -> None:
    end_with_parent()
    logging.disable(logging.WARNING)  # the main process has logged the warnings
    torch.set_num_threads(1)
    _Worker.search = decoder.build(tokenizer_from_state(tokenizer), topology)


def _search(key: Any, emissions_TV: Any, weights: Weights | None) -> Found:
    if weights is not None and weights != _Worker.weights:
        _Worker.search = _Worker.search.with_weights(weights)
        _Worker.weights = weights
    started = time.process_time()
    log_probs_BTV = torch.from_numpy(emissions_TV)[None]
    (path,) = search_batch(_Worker.search, log_probs_BTV, torch.tensor([log_probs_BTV.shape[1]]))
    return Found(key, path, time.process_time() - started)
