"""Scores of folders and files, and what `asr score` prints about them."""

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from asr.scoring.options import ScoreOptions
from asr.scoring.run import score_paths
from asr.scoring.score import Score


def scored(paths: Sequence[str | Path], **options) -> list[Score]:
    return score_paths(paths, ScoreOptions(**options), console=Console(quiet=True))


def printed(paths: Sequence[str | Path], width: int = 80, **options) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    score_paths(paths, ScoreOptions(**{"details": True, **options}), console=console)
    return console.export_text()
