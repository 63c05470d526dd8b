"""Comparisons in one process."""

import pytest
from comparisons import train_nothing
from runs import in_process

from asr.compare import run


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_job", in_process)
    # The report has its own tests.
    monkeypatch.setattr("asr.report.page.write_report", lambda results, folder: folder / "report.html")


@pytest.fixture
def fast_without_training(fast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_job", train_nothing)
