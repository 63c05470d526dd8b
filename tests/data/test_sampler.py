import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.data.sampler import BatchStream, Cursor, NumberedPlans, padding_share, plan_by_length
from asr.errors import UserError


def lengths(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(20, 1500, count)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 2000))
def test_every_utterance_once_and_within_the_budget(frames: list[int], budget: int) -> None:
    array = np.array(frames)
    batches = plan_by_length(array, budget, np.argsort(array, kind="stable"))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(frames)))
    for batch in batches:
        assert len(batch) == 1 or array[batch].max() * len(batch) <= budget


def test_batches_are_filled_up_to_the_budget() -> None:
    batches = plan_by_length(np.full(10, 100), 300, np.arange(10))
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]


def test_without_an_order_the_longest_come_first_and_equal_ones_in_turn() -> None:
    frames = np.array([3, 9, 5, 9, 1, 5])
    assert [batch.tolist() for batch in plan_by_length(frames, 10)] == [[1], [3], [2, 5], [0, 4]]
    assert [batch.tolist() for batch in plan_by_length(frames, 0, count=4)] == [[1, 3, 2, 5], [0, 4]]


def test_batches_of_a_number_of_utterances_ignore_their_lengths() -> None:
    frames = lengths(29)
    batches = plan_by_length(frames, 1, np.argsort(frames), count=6)
    assert [len(batch) for batch in batches] == [6, 6, 6, 6, 5]
    assert np.concatenate(batches).tolist() == np.argsort(frames).tolist()
    stream = BatchStream(frames, 1, 12, count=6)
    assert sorted(len(batch) for batch in stream.epoch(0)) == [5, 6, 6, 6, 6]


def test_batches_of_similar_length_have_little_padding() -> None:
    frames = lengths(2000)
    batches = BatchStream(frames, 20000, 1).epoch(0)
    assert padding_share(frames, batches) < 0.12
    random = plan_by_length(frames, 20000, np.random.default_rng(0).permutation(len(frames)))
    assert padding_share(frames, random) > 0.3


def test_epochs_differ_and_are_reproducible_from_the_seed() -> None:
    stream = BatchStream(lengths(100), 5000, 1, seed=3)
    first, again, second = ([batch.tolist() for batch in stream.epoch(i)] for i in (0, 0, 1))
    assert first == again
    assert first != second
    assert first != [batch.tolist() for batch in BatchStream(lengths(100), 5000, 1, seed=4).epoch(0)]


@pytest.mark.parametrize("ranks", [3, 4, 5, 40])
def test_ranks_take_the_batches_of_one_process_in_turn(ranks: int) -> None:
    """The first batches of an epoch were repeated so that all ranks had equally many."""
    frames = lengths(101)
    one = list(itertools.islice(BatchStream(frames, 4000, 200), 120))
    assert len(BatchStream(frames, 4000, 1).epoch(0)) % ranks  # a turn goes on in the next epoch
    for rank in range(ranks):
        own = list(BatchStream(frames, 4000, 120 // ranks, ranks=ranks, rank=rank))
        assert own == one[: 120 // ranks * ranks][rank::ranks]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 3), (3, 2), (2, 40), (40, 3)])
def test_resuming_from_a_cursor_equals_an_uninterrupted_stream(before: int, after: int) -> None:
    """A stream could resume only on as many ranks as before."""
    frames = lengths(57)
    one = list(BatchStream(frames, 4000, 240, seed=1))
    for taken in (0, 1, 2, 3):
        consumed = taken * before
        last = one[consumed - before] if taken else None  # the first rank's
        cursor = Cursor(last.epoch, last.position + before, taken) if last else Cursor()
        turns = (len(one) - consumed) // after
        for rank in range(after):
            stream = BatchStream(frames, 4000, taken + turns, seed=1, ranks=after, rank=rank, start=cursor)
            assert list(stream) == one[consumed : consumed + turns * after][rank::after]


def test_resuming_plans_no_previous_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []
    original = BatchStream.epoch
    monkeypatch.setattr(
        BatchStream, "epoch", lambda self, epoch: planned.append(epoch) or original(self, epoch)
    )
    stream = BatchStream(lengths(50), 4000, 10**6, start=Cursor(epoch=900, position=2, batches=20000))
    next(iter(stream))
    assert planned == [900]


def test_no_utterances_is_an_error() -> None:
    with pytest.raises(UserError, match="no utterances"):
        BatchStream(np.zeros(0, dtype=np.int64), 100, 1)


def test_ranks_take_turns_in_a_stream_of_numbered_batches() -> None:
    streams = [NumberedPlans(5, ranks=3, rank=rank) for rank in range(3)]
    positions = [[plan.position for plan in stream] for stream in streams]
    assert positions == [list(range(rank, 15, 3)) for rank in range(3)]
    resumed = NumberedPlans(5, ranks=3, rank=1, start=Cursor(0, 6, 2))
    assert [plan.position for plan in resumed] == positions[1][2:]
    assert len(resumed) == 5
