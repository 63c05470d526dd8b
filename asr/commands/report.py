"""`asr report`: write the page of a comparison or a training, finished or running."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from asr.config import refuse
from asr.console import open_console
from asr.errors import UserError
from asr.experiment.results import read_results
from asr.files import is_locked, near_path
from asr.records.run_folder import RunFolder
from asr.report.options import ReportOptions
from asr.report.page import write_report
from asr.report.run_page import run_results, watched, write_run_page
from asr.report.tables import heard

OF_COMPARISONS = ("metric", "audio", "maps", "static")


def run(paths: Sequence[str | Path], options: ReportOptions) -> Path:
    """Write the page beside the results, or into the run folder, and print its path.

    Raises:
        UserError: no results in the folder, or an option that cannot be used.
    """
    path = Path(paths[0])
    if not path.exists():
        raise UserError(f"{path}: expected a folder of asr train or compare, found none{near_path(path)}")
    if path.is_dir() and not (path / "results.json").exists():
        if not RunFolder(path).options.exists():
            if is_locked(path) or (path / "trainings").is_dir():
                raise UserError(
                    f"{path}: no results yet: a comparison writes them after its first evaluation, or at its "
                    "end if it runs a trained model"
                )
            raise UserError(
                f"{path}: expected a folder of asr train or compare, found neither config.yaml nor "
                "results.json"
            )
        refuse(options, OF_COMPARISONS, "with a run of asr train")
        return _follow_run(path, options)
    return _follow_results(path, options)


def _follow_run(folder: Path, options: ReportOptions) -> Path:
    console, step = open_console(markup=False), -1
    while True:
        training = watched(folder)
        page = write_run_page(training, options.refresh)
        state = " ".join(f"{x.head}: {x.text}" for x in training.findings())
        console.print(f"{folder}: {state}", soft_wrap=True)
        if training.heard and training.heard[0].step > step:
            console.print(heard.table(run_results(training)))
        if step < 0:
            _announce(page)
        step = training.heard[0].step if training.heard else 0
        if not (options.refresh and training.running):
            return page
        time.sleep(options.refresh)


def _follow_results(path: Path, options: ReportOptions) -> Path:
    file = path / "results.json" if path.is_dir() else path
    folder, first = file.parent, True
    if file.suffix == ".gz":  # stored with a recipe, in whose folder a page doesn't belong
        folder = Path("exp", file.name.split(".")[0])
    while True:
        running = bool(options.refresh) and is_locked(folder)
        shown = replace(options, refresh=options.refresh if running else 0)
        page = write_report(read_results(path), folder, shown)
        if first:
            _announce(page)
        first = False
        if not running:
            return page
        time.sleep(options.refresh)


def _announce(page: Path) -> None:
    print(f"report: {page}", flush=True)
