"""The choice of a device."""

import pytest
import torch

from asr.environment import pick_device
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
