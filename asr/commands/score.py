"""`asr score`: error rates, alignments and significance tests of hypotheses."""

from pathlib import Path

from asr.commands import COMMANDS
from asr.errors import UserError
from asr.scoring.options import ScoreOptions
from asr.scoring.run import score_paths


def run(paths: list[Path], options: ScoreOptions) -> None:
    """Score, and print tables with the error rates and the places of the files."""
    if not paths:
        raise UserError(f"asr score takes {COMMANDS['score'].takes}, found none")
    score_paths(paths, options)
