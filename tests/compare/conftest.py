"""Comparisons in one process."""

import pytest
from runs import in_process

from asr.compare import run


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_job", in_process)
    # The report has its own tests.
    monkeypatch.setattr("asr.report.page.write_report", lambda results, folder: folder / "report.html")
