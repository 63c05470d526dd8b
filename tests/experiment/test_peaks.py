"""Peak memory of an operation, and the largest batch that fits."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from asr.experiment import peaks
from asr.experiment.peaks import TooLarge, largest_batch, peak_memory_bytes
from asr.experiment.random_input import Problem
from asr.measure import can_measure_memory, peak_bytes_of

MIB = 2**20
LAYER = Problem(8, 8, "fp32", "cpu", 0, unit="layer", feedforward=96, batch=2, length=40)


@pytest.fixture
def second_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's allocator, whose `cuda:1` holds 3 MiB, and 5 MiB at its peak; other devices hold nothing."""

    def held(mib: int) -> Callable[..., int]:
        return lambda device=None: mib * MIB if str(device) == "cuda:1" else 0

    monkeypatch.setattr(torch.cuda, "memory_allocated", held(3))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", held(5))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", held(0))


@pytest.mark.usefixtures("second_gpu")
def test_memory_is_that_of_the_gpu_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """With device=cuda:1, the memory of cuda:0 was read: 0 MiB, and batch=max grew without end."""
    assert peak_bytes_of(lambda: None, "cuda:1") == 2 * MIB
    monkeypatch.setattr(peaks, "build_operation", lambda name, problem: None)
    monkeypatch.setattr(peaks, "run_once", lambda *arguments: None)
    monkeypatch.setattr(Problem, "tensors", lambda self: ([], None))
    problem = Problem(1, 8, "fp32", "cuda:1", 0, batch=1, length=100)
    assert peak_memory_bytes("full", problem) == 2 * MIB


@pytest.mark.skipif(not can_measure_memory("cpu"), reason="needs /proc (Linux)")
def test_no_operation_is_called_with_another_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks of pytorch-fast-transformers are made for one length; the first call had 64 positions."""

    def build(name: str, problem: Problem) -> Callable[..., Tensor]:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            assert q.shape == (problem.batch, 1, problem.length, 8)
            return v

        return attend

    monkeypatch.setattr(peaks, "build_operation", build)
    monkeypatch.setattr(peaks, "in_new_process", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    problem = Problem(1, 8, "fp32", "cpu", 0, batch=2, length=100)
    assert peak_memory_bytes("peer:clustered-4", problem, "forward") >= 0


@pytest.mark.parametrize("first", [1, 5, 300])
@pytest.mark.parametrize("fixed", [0, 7_000_000, 90_000_000])
@pytest.mark.parametrize("each", [90_000, 3_000_000, 40_000_000])
def test_the_largest_batch_is_found_in_few_attempts(fixed: int, each: int, first: int) -> None:
    """Allocators round: here to 4 MB, which isn't linear."""
    limit, tried = 100_000_000, []

    def peak(batch: int) -> int | None:
        tried.append(batch)
        size = -(-(fixed + each * batch) // 4_000_000) * 4_000_000
        return size if size < 2 * limit else None

    found = largest_batch(peak, limit, first)
    most = next(batch for batch in range(1, 2000) if (peak(batch) or limit + 1) > limit) - 1
    if most == 0:
        assert found is None
        return
    assert found is not None
    batch, size = found
    assert size == peak(batch) <= limit
    assert batch == most or size > 0.95 * limit
    assert len(tried) - most - 2 <= 12


def test_a_batch_too_small_to_be_seen_grows_step_by_step() -> None:
    """A tiny layer's first batch took no new page; the next one had as many sequences as the limit bytes."""
    tried = []

    def peak(batch: int) -> int:
        tried.append(batch)
        return max(0, 1000 * batch - 50_000)

    batch, size = largest_batch(peak, 20_000_000) or (0, 0)
    assert 0.95 * 20_000_000 < size == 1000 * batch - 50_000 <= 20_000_000
    assert tried[:3] == [1, 16, 256]
    assert max(tried) < 2 * batch


@pytest.mark.slow
@pytest.mark.skipif(not can_measure_memory("cpu"), reason="needs /proc (Linux)")
def test_a_call_beyond_the_limit_ends_instead_of_filling_the_memory() -> None:
    """Weights of 8 heads and 6,000 positions take 1.1 GB in plain PyTorch."""
    with pytest.raises(TooLarge, match="full@reference at length 6000"):
        peak_memory_bytes("full@reference", replace(LAYER, length=6000), "forward", limit=20_000_000)
