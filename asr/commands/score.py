"""`asr score`: error rates, alignments and significance tests of hypotheses."""

from pathlib import Path

from asr.scoring.options import ScoreOptions
from asr.scoring.run import score_paths


def run(paths: list[Path], options: ScoreOptions) -> None:
    """Score, and print tables with the error rates and the places of the files."""
    score_paths(paths, options)
