"""The progress display of a comparison."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rich.console import Console

from asr.compare.cell import Cell, write_cell, write_state
from asr.compare.plan import Plan
from asr.compare.progress import CellProgress

CELL = Cell("trainings/full/seed0", "training", {"attention": "full"})


def progress_of(folder: Path) -> tuple[CellProgress, io.StringIO]:
    write_cell(folder, CELL)
    plan: Any = SimpleNamespace(folder=folder, cells=lambda: iter([CELL]), evaluations={})
    text = io.StringIO()
    return CellProgress(cast(Plan, plan), Console(file=text, width=100)), text


def test_a_cell_at_100_percent_may_still_be_running(tmp_path: Path) -> None:
    """A training that had used up its budget but was still validating appeared as "FAILED: None"."""
    progress, text = progress_of(tmp_path)
    write_state(tmp_path, CELL, "running")
    progress.update(CELL, 1.0)
    assert "FAILED" not in text.getvalue()
    write_state(tmp_path, CELL, "done", seconds=12.0)
    progress.update(CELL, 1.0)
    progress.update(CELL, 1.0)
    assert text.getvalue().count("trainings/full/seed0: 12.0 s") == 1


def test_a_failure_is_shown_with_its_reason(tmp_path: Path) -> None:
    progress, text = progress_of(tmp_path)
    write_state(tmp_path, CELL, "failed", error="out of memory")
    progress.update(CELL, 1.0)
    assert "[1/1] trainings/full/seed0: FAILED: out of memory" in text.getvalue()
