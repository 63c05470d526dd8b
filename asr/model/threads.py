"""Batches in threads: several are encoded side by side while others are read."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from asr.model.acoustic_model import AcousticModel, evaluating

READERS = 2  # threads beyond those that encode

Item = TypeVar("Item")
Content = TypeVar("Content")
Result = TypeVar("Result")


def in_threads(
    model: AcousticModel,
    read: Callable[[Item], Content],
    encode: Callable[[Content], Result],
    items: Sequence[Item],
) -> Iterator[Result]:
    """Yield encode(read(item)) of each item in order.

    On a CPU, as many items are encoded side by side as PyTorch has threads, which they share: the threads of
    a single batch would wait for each other after every operation. On a GPU, one item is encoded at a time.

    Args:
        model: acoustic model used by `encode`, in evaluation mode meanwhile.
        read: loads an item, before its turn and beside the encoding of others.
        encode: maps what `read` returns to a result.
        items: arguments of `read`.
    """
    threads = torch.get_num_threads()
    encoders = max(1, min(threads, len(items))) if model.device.type == "cpu" else 1
    turn = threading.Semaphore(encoders)

    def work(item: Item) -> Result:
        content = read(item)
        with turn:
            return encode(content)

    waiting: deque[Future[Result]] = deque()
    # PyTorch's number of threads is one of the calling thread, and the default of threads started later.
    pool = ThreadPoolExecutor(
        encoders + READERS, initializer=torch.set_num_threads, initargs=(threads // encoders,)
    )
    try:
        with evaluating(model):
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > encoders + READERS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
