"""The choice of a device and of a precision."""

from pathlib import Path

import pytest
import torch

from asr.environment import pick_device, pick_precision
from asr.errors import UserError


def test_auto_prefers_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert pick_device("auto") == expected


def test_a_device_that_exists_is_taken_as_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("cpu", "cuda", "cuda:0", "cuda:1"):
        assert pick_device(name) == name


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("cuda", 0, "device=cuda: expected a CUDA device, this machine has none"),
        ("cuda:2", 2, "device=cuda:2: expected a CUDA device, this machine has 2"),
        ("meta", 1, "device=meta: expected auto"),
        ("gpu", 1, r"device=gpu: expected auto \| cpu \| cuda"),
    ],
)
def test_a_missing_device_is_named(
    name: str, count: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(UserError, match=message):
        pick_device(name)


CPUINFO = {
    "flags\t\t: fpu avx512f avx512_bf16 amx_tile": "avx512_bf16",
    "flags\t\t: fpu amx_tile avx512_bf16 amx_bf16": "amx_bf16",
    "Features\t: fp asimd bf16 i8mm": "bf16",
    "flags\t\t: fpu avx512f avx512bw": None,
    "cpu family\t: 25": None,
}


@pytest.mark.parametrize("line", CPUINFO)
def test_auto_takes_bf16_where_the_processor_has_instructions(
    line: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path: f"processor\t: 0\n{line}\n")
    chosen, found = pick_precision("auto", "cpu"), CPUINFO[line]
    assert chosen.name == ("bf16" if found else "fp32")
    assert chosen.reason == f"the processor has {found or 'no instructions for bf16'}"
    assert not caplog.records
    assert pick_precision("bf16", "cpu", "trainer.precision").name == "bf16"
    assert ("trainer.precision=bf16 is slower than fp32 here" in caplog.text) == (found is None)
    assert pick_precision("fp32", "cpu").name == "fp32"


def test_auto_is_fp32_for_a_trained_model() -> None:
    """In bf16 the models of five languages lost 0.3 points of CER."""
    chosen = pick_precision("auto", "cpu", recognising=True)
    assert (chosen.name, chosen.reason) == ("fp32", "decoding in bf16 can cost accuracy")
    assert pick_precision("bf16", "cpu", recognising=True).name == "bf16"


def test_fp16_needs_a_gpu() -> None:
    with pytest.raises(UserError, match=r"trainer\.precision=fp16 needs a CUDA device: use bf16 or fp32"):
        pick_precision("fp16", "cpu", "trainer.precision")
    assert pick_precision("fp16", "cuda").name == "fp16"
