"""`asr compare`: attention mechanisms under one protocol to error rates, costs and a report."""

import shlex
from pathlib import Path

from asr.compare.options import CompareConfig, Request, parse
from asr.console import open_console
from asr.errors import UserError

__all__ = ["POSITIONAL", "Options", "parse", "run"]

POSITIONAL = "[any option of asr train, for all candidates]"
Options = CompareConfig


def run(paths: list[Path], request: Request) -> None:
    """Compare, or print the plan; where cells fail, say so at the end.

    Raises:
        UserError: what can't be, and cells that failed.
    """
    from asr.compare.estimate import print_plan
    from asr.compare.plan import make_plan
    from asr.compare.run import run_plan
    from asr.compare.tables import print_results
    from asr.report.page import write_report

    if paths:
        raise UserError(f"asr compare takes key=value options only, found {str(paths[0])!r}")
    console = open_console()
    plan = make_plan(request)
    if request.options.dry_run:
        print_plan(plan, console)
        return
    results = run_plan(plan, ["asr", "compare", *request.command], console)
    print_results(results, console)
    console.print(f"to do it again, or go on: {shlex.join(results.command)}", markup=False, soft_wrap=True)
    for name in ("results.json", "results.csv"):
        print(f"{name}: {plan.folder / name}")
    print(f"report: {write_report(results, plan.folder)}")
    if results.failures:
        failed = ", ".join(failure.cell for failure in results.failures[:5])
        raise UserError(f"{len(results.failures)} cells failed ({failed}); the rest is in the results")
