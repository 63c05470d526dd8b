"""Comparisons in one process."""

from pathlib import Path

import pytest
from comparisons import arguments, train_nothing
from once import once
from runs import in_process

from asr.cli import main
from asr.experiment import launch


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures' files, a second of CPU time each; tests/report draws them."""
    monkeypatch.setattr("asr.report.page._export", lambda *_: {})


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


def quicken(patch: pytest.MonkeyPatch) -> None:
    """Run all jobs in this process, and leave out the report, which has its own tests."""
    patch.setattr(launch, "run_cells", in_process)
    patch.setattr("asr.library.write_report", lambda results, folder: folder / "report.html")


@pytest.fixture(scope="session")
def compared(tone_corpus: Path, shared: Path) -> Path:
    """A finished comparison of full attention, to read; tests that go on with it copy the folder."""

    def compare(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            quicken(patch)
            assert main(arguments(tone_corpus, folder, "attentions=[full]")) == 0

    return once(shared / "compared", compare)


@pytest.fixture
def fast_without_training(fast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "run_cells", train_nothing)
