"""`asr score`: error rates, alignments and significance tests of hypotheses."""

from pathlib import Path

from asr.errors import UserError
from asr.scoring.run import ScoreOptions, score_paths

POSITIONAL = "<folder> ... | <hyp.trn> <ref.trn> | <hyp.ctm> <ref.stm> | <ref.txt> <hyp.txt>"
Options = ScoreOptions


def run(paths: list[Path], options: Options) -> None:
    """Score; the tables say where the files are."""
    if not paths:
        raise UserError(f"asr score takes {POSITIONAL}, found none")
    score_paths(paths, options)
