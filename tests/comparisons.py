"""Comparisons of tiny models on the tone corpus."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runs import in_process
from tone_corpora import TINY

from asr.experiment.cell import Cell
from asr.records.job import BEGUN

SHORT = [
    "steps=4",
    "trainer.validate_every=2",
    "trainer.checkpoint_every=1",
    "timing_repeats=1",
    "reuse=none",
]


def arguments(corpus: Path, folder: Path, *more: str) -> list[str]:
    return ["compare", *TINY, f"data.train=[{corpus}]", *SHORT, f"folder={folder}", *more]


def reusing(trained: Path, corpus: Path, folder: Path, *more: str) -> list[str]:
    """Return a comparison whose settings are those of the trained model."""
    asked = ["compare", *TINY, f"data.train=[{corpus}]", f"folder={folder}", f"reuse={trained.parent}"]
    asked += ["attentions=[full]", "evaluate=[clustered-3]", "trainer.validate_every=40", "timing_repeats=1"]
    return [*asked, "steps=80", *more]


def put(folder: Path, cell: Cell, status: str, **record: Any) -> None:
    """Write a cell's journal as a worker does that runs it or has ended."""
    job = cell.job(folder)
    if status == "running":
        job.add(BEGUN, None)
        job.close()
    else:
        job.end(**({"error": "broken"} if status == "failed" else {}) | record)


def train_nothing(folder: Path, cells: list[Cell], advance: Callable[[Cell, float], None]) -> None:
    assert all(cell.kind != "training" for cell in cells), "a finished model was trained again"
    in_process(folder, cells, advance)
