"""Peak memory of a call in this process."""

import pytest
import torch

from asr.benchmark.memory import can_measure_memory, peak_bytes_of

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
