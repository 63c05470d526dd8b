"""`asr report`: write the report of a finished or running comparison again."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from asr.commands import COMMANDS
from asr.comparison.results import read_results
from asr.errors import UserError
from asr.report.options import ReportOptions
from asr.report.page import write_report


def run(paths: Sequence[str | Path], options: ReportOptions) -> Path:
    """Write the report beside results.json and print its path.

    Raises:
        UserError: not exactly one folder, no results in it, or an option that cannot be used.
    """
    if len(paths) != 1:
        raise UserError(f"asr report takes one {COMMANDS['report'].takes}, found {len(paths)}")
    path = Path(paths[0])
    results = read_results(path)
    page = write_report(results, path if path.is_dir() else path.parent, options)
    print(f"report: {page}")
    if options.open:
        webbrowser.open(page.resolve().as_uri())
    return page
