"""Progress of a comparison says how cells stand."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rich.console import Console

from asr.compare.cells import Cell, write_cell, write_state
from asr.compare.plan import Plan
from asr.compare.watch import Watch

CELL = Cell("trainings/full/seed0", "training", {"attention": "full"})


def watch_of(folder: Path) -> tuple[Watch, io.StringIO]:
    write_cell(folder, CELL)
    plan: Any = SimpleNamespace(folder=folder, cells=lambda: iter([CELL]), evaluations={})
    text = io.StringIO()
    return Watch(cast(Plan, plan), Console(file=text, width=100)), text


def test_a_cell_whose_work_is_done_has_not_ended_yet(tmp_path: Path) -> None:
    """A training that had spent its budget and was still validating was announced as "FAILED: None"."""
    watch, text = watch_of(tmp_path)
    write_state(tmp_path, CELL, "running")
    watch.tell(CELL, 1.0)
    assert "FAILED" not in text.getvalue()
    write_state(tmp_path, CELL, "done", seconds=12.0)
    watch.tell(CELL, 1.0)
    watch.tell(CELL, 1.0)
    assert text.getvalue().count("trainings/full/seed0: 12 s") == 1


def test_a_failure_is_told_with_its_reason(tmp_path: Path) -> None:
    watch, text = watch_of(tmp_path)
    write_state(tmp_path, CELL, "failed", error="out of memory")
    watch.tell(CELL, 1.0)
    assert "[1/1] trainings/full/seed0: FAILED: out of memory" in text.getvalue()
