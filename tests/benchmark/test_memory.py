"""Peak memory of a call in this process."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from asr.benchmark import memory
from asr.benchmark.memory import can_measure_memory, peak_bytes_of, peak_memory_bytes
from asr.benchmark.problem import BenchProblem

MIB = 2**20


@pytest.mark.skipif(not can_measure_memory("cpu"), reason="needs /proc (Linux)")
def test_the_peak_is_what_a_call_holds_at_once() -> None:
    def call() -> torch.Tensor:
        first = torch.ones(32 * MIB // 4)
        second = first + 1  # 64 MiB with the first
        del first
        return second[: 32 * MIB // 8] + 1  # 48 MiB with the second

    call()
    peaks = [peak_bytes_of(call, "cpu") for _ in range(2)]
    assert all(peak is not None and 60 * MIB < peak < 80 * MIB for peak in peaks)
    small = peak_bytes_of(lambda: torch.ones(MIB), "cpu")
    assert small is not None
    assert small < 10 * MIB


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
    monkeypatch.setattr(memory, "build_operation", lambda name, problem: None)
    monkeypatch.setattr(memory, "run_once", lambda *arguments: None)
    monkeypatch.setattr(BenchProblem, "tensors", lambda self: ([], None))
    problem = BenchProblem(1, 8, "fp32", "cuda:1", 0, batch=1, length=100)
    assert peak_memory_bytes("full", problem) == 2 * MIB


@pytest.mark.skipif(not can_measure_memory("cpu"), reason="needs /proc (Linux)")
def test_no_operation_is_called_with_another_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks of pytorch-fast-transformers are made for one length; the first call had 64 positions."""

    def build(name: str, problem: BenchProblem) -> Callable[..., Tensor]:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            assert q.shape == (problem.batch, 1, problem.length, 8)
            return v

        return attend

    monkeypatch.setattr(memory, "build_operation", build)
    monkeypatch.setattr(memory, "in_new_process", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    problem = BenchProblem(1, 8, "fp32", "cpu", 0, batch=2, length=100)
    assert peak_memory_bytes("peer:clustered-4", problem, "forward") >= 0
