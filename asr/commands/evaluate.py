"""`asr evaluate`: error rates, or bits per token, of models of copy, language and longrange."""

from dataclasses import asdict
from pathlib import Path

from asr.console import open_console, progress
from asr.files import check_writable, write_json
from asr.library.evaluating import evaluate_runs
from asr.report.summary import print_results
from asr.training.options import EvaluateOptions


def run(paths: list[Path], options: EvaluateOptions) -> None:
    """Evaluate the runs, print a table, and write the results if asked to.

    Raises:
        UserError: see `evaluate_runs`.
    """
    if options.output:
        check_writable(options.output)
    with progress() as bars:
        tasks = {path: bars.add_task(str(path), total=1.0) for path in paths}
        results = evaluate_runs(paths, options, lambda path, done: bars.update(tasks[path], completed=done))
    print_results(results, open_console())
    if options.output:
        write_json(asdict(results), options.output)
        print(f"results: {options.output}; asr report makes a page from it")
