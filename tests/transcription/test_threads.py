"""Batches in threads: order, errors, bounded reading, and PyTorch's threads."""

import threading
import time

import pytest
import torch

from asr import Recognizer
from asr.transcription.pipeline import READERS, in_threads


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_are_in_order_and_threads_are_shared(recognizer: Recognizer, threads: int) -> None:
    model = recognizer.model
    encoding, most, shares = [0], [0], set()
    lock = threading.Lock()

    def read(item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item

    def encode(item: int) -> int:
        with lock:
            encoding[0] += 1
            most[0] = max(most[0], encoding[0])
            shares.add(torch.get_num_threads())
        assert not model.training
        time.sleep(0.001)
        with lock:
            encoding[0] -= 1
        return -item

    for items, encoders in ((range(30), threads), (range(2), min(2, threads))):
        most[0] = 0
        shares.clear()
        assert list(in_threads(model, read, encode, items)) == [-item for item in items]
        assert most[0] <= encoders
        assert shares == {threads // encoders}
    assert torch.get_num_threads() == threads
    assert list(in_threads(model, read, encode, [])) == []


def test_reading_is_bounded(recognizer: Recognizer, threads: int) -> None:
    read: list[int] = []
    results = in_threads(recognizer.model, read.append, lambda content: content, range(100))
    next(results)
    assert len(read) <= threads + READERS + 1
    results.close()
    assert len(read) <= threads + READERS + 1
    assert torch.get_num_threads() == threads


def test_an_error_ends_the_work(recognizer: Recognizer, threads: int) -> None:
    done: list[int] = []

    def encode(item: int) -> None:
        if item == 3:
            raise ValueError("item 3")
        done.append(item)

    with pytest.raises(ValueError, match="item 3"):
        list(in_threads(recognizer.model, lambda item: item, encode, range(1000)))
    assert len(done) < 20
    assert torch.get_num_threads() == threads
