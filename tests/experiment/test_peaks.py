"""Peak memory of an operation."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from asr.experiment import peaks
from asr.experiment.peaks import peak_memory_bytes
from asr.experiment.random_input import Problem
from asr.measure import can_measure_memory, peak_bytes_of

MIB = 2**20


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
