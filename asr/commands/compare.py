"""`asr compare`: train, evaluate and time attention mechanisms under one protocol, with a report."""

from asr.experiment.request import parse
from asr.library import run_comparison


def main(paths: list[str], overrides: list[str]) -> None:
    """Run a comparison, or print its plan."""
    run_comparison(parse(overrides))
