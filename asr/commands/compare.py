"""`asr compare`: train, evaluate and time attention mechanisms under one protocol, with a report."""

import shlex
from pathlib import Path

from asr.compare.plan import make_plan
from asr.compare.progress import print_grid, print_plan
from asr.compare.request import Request, parse
from asr.compare.results import Results
from asr.compare.run import run_plan
from asr.console import open_console
from asr.errors import UserError
from asr.files import check_writable
from asr.report.words import print_results


def write_report(results: Results, folder: Path) -> Path:
    """Write the report, whose libraries are loaded once there is something to show."""
    from asr.report import page

    return page.write_report(results, folder)


def main(paths: list[str], overrides: list[str]) -> None:
    """Run a comparison; see `run`."""
    run([Path(path) for path in paths], parse(overrides))


def run(paths: list[Path], request: Request) -> None:
    """Run the comparison, or print its plan.

    Raises:
        UserError: an invalid plan, or failed cells after all others have run.
    """
    if paths:
        raise UserError(f"asr compare takes key=value options only, found {str(paths[0])!r}")
    console = open_console()
    if request.options.dry_run:
        print_grid(request, console)
    plan = make_plan(request)
    if request.options.dry_run:
        print_plan(plan, console)
        return
    check_writable(plan.folder / "report.html")
    results = run_plan(plan, console)
    print_results(results, console)
    console.print(f"repeat or resume with: {shlex.join(results.command)}", markup=False, soft_wrap=True)
    for name in ("results.json", "results.csv"):
        print(f"{name}: {plan.folder / name}")
    print(f"report: {write_report(results, plan.folder)}")
    if results.failures:
        number = len(results.failures)
        failed = ", ".join(failure.cell for failure in results.failures[:5])
        cells = "1 cell" if number == 1 else f"{number} cells"
        raise UserError(f"{cells} failed ({failed}); the results contain the others")
