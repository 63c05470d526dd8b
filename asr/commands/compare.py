"""`asr compare`: train, evaluate and time attention mechanisms under one protocol, with a report."""

from asr.errors import UserError
from asr.experiment.request import parse
from asr.library import run_comparison


def main(paths: list[str], overrides: list[str]) -> None:
    """Run a comparison, or print its plan."""
    request = parse(overrides)
    if paths:
        raise UserError(f"asr compare takes key=value options only, found {str(paths[0])!r}")
    run_comparison(request)
