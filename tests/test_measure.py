"""Work that is timed in turns, and the peak memory of a call."""

import gc
import itertools
from collections.abc import Callable

import pytest
import torch

from asr import measure
from asr.cli import KEEPING, KEPT_BYTES
from asr.measure import (
    LEAST_ROUNDS,
    Seconds,
    can_measure_memory,
    in_turns,
    peak_bytes_of,
    time_of,
    torch_threads,
)
from asr.parallel import in_new_process

MIB = 2**20


def recorder(calls: list[str], name: str) -> Callable[[], Seconds]:
    """Return a turn whose n-th call takes n seconds."""
    numbers = itertools.count(1)

    def turn() -> Seconds:
        calls.append(name)
        return Seconds(float(next(numbers)), 0.5)

    return turn


def test_turns_alternate_and_the_warm_up_does_not_count() -> None:
    calls: list[str] = []
    done: list[int] = []
    turns = {name: recorder(calls, name) for name in "ab"}
    found = in_turns(turns, rounds=2, warm_up=1, advance=lambda: done.append(len(calls)))
    assert done == [1, 2, 3, 4, 5, 6]
    assert calls == ["a", "b"] * 3
    assert [taken.wall_s for taken in found["a"]] == [2.0, 3.0]
    assert sum(found["b"], Seconds()) == Seconds(5.0, 1.0)
    assert [taken.wall_s for taken in in_turns({"a": recorder([], "a")}, 2, warm_up=0)["a"]] == [1.0, 2.0]


def test_a_time_limit_leaves_rounds_for_a_median(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=10.0)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    assert len(in_turns({"a": recorder([], "a")}, 9, limit_s=0.0)["a"]) == LEAST_ROUNDS
    assert len(in_turns({"a": recorder([], "a")}, 9, limit_s=30.0)["a"]) == LEAST_ROUNDS + 3
    assert len(in_turns({"a": recorder([], "a")}, 2, limit_s=0.0)["a"]) == 2


@pytest.mark.parametrize("collect", [True, False])
def test_no_garbage_is_collected_during_a_turn_if_asked_for(collect: bool) -> None:
    def turn() -> Seconds:
        assert gc.isenabled() != collect
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        in_turns({"a": turn}, 1, collect=collect)
    assert gc.isenabled()


def test_each_turn_begins_with_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first of a round did, the baseline's, which found empty caches: 0.3 ms more."""
    calls: list[str] = []
    monkeypatch.setattr(measure.gc, "collect", lambda: calls.append("collect"))
    in_turns({name: recorder(calls, name) for name in "ab"}, 1, warm_up=0, collect=True)
    assert calls == ["collect", "collect", "a", "collect", "b"]


def test_both_clocks_are_read() -> None:
    taken = time_of(lambda: sum(range(300_000)))
    assert taken.by("wall") == taken.wall_s > 0
    assert taken.by("cpu") == taken.cpu_s > 0
    assert (taken - taken) * 2.0 == Seconds()


def test_threads_are_those_of_the_block() -> None:
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with torch_threads(0):
        assert torch.get_num_threads() == before


def peaks_of_a_call() -> list[int | None]:
    def call() -> torch.Tensor:
        first = torch.ones(32 * MIB // 4)
        second = first + 1  # 64 MiB with the first
        del first
        return second[: 32 * MIB // 8] + 1  # 48 MiB with the second

    call()
    return [peak_bytes_of(call, "cpu"), peak_bytes_of(lambda: torch.ones(MIB), "cpu")]


@pytest.mark.skipif(not can_measure_memory("cpu"), reason="needs /proc (Linux)")
@pytest.mark.parametrize("kept", ["131072", str(KEPT_BYTES)])
def test_the_peak_is_what_a_call_holds_at_once(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `asr` keeps freed memory, holes in it counted, 80 MiB here."""
    for name in KEEPING:
        monkeypatch.setenv(name, kept)
    peak, small = in_new_process(peaks_of_a_call)
    assert 60 * MIB < peak < 70 * MIB
    assert small < 10 * MIB
