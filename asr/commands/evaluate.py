"""`asr evaluate`: error rates, or bits per token, of models of copy, language and longrange."""

from dataclasses import asdict
from pathlib import Path

from rich.progress import TaskID

from asr.commands import COMMANDS
from asr.console import Table, open_console, progress
from asr.environment import pick_device
from asr.errors import UserError
from asr.files import check_writable, write_json
from asr.scoring.measures import is_share
from asr.scoring.statistics import DASH, Estimate
from asr.training.labelling import evaluate, load_task
from asr.training.options import EvaluateOptions


def run(paths: list[Path], options: EvaluateOptions) -> None:
    """Evaluate the runs and print a table.

    Raises:
        UserError: see `load_task` and `evaluate`.
    """
    if not paths:
        raise UserError(f"asr evaluate takes {COMMANDS['evaluate'].takes}, found none")
    if options.output:
        check_writable(options.output)
    device = pick_device(options.device)
    scores = {}
    with progress() as bars:
        for path in paths:
            bar = bars.add_task(str(path), total=1.0)

            def advance(done: float, bar: TaskID = bar) -> None:
                bars.update(bar, completed=done)

            task, data = load_task(str(path), options.attention, device)
            scores[str(path)] = evaluate(task, data, options.split, options.items, advance)
    rows = []
    for name, x in scores.items():
        share = is_share(x.measure)
        form = (lambda value: f"{100 * value:.1f}") if share else "{:.3f}".format
        value = form(x.value)
        if x.item_perplexity is not None:
            value += f" (perplexity {2**x.value:.2f}; mean over items {x.item_perplexity:.2f})"
        ends = Estimate.bootstrapped(x.value, x.interval).ends(form, " … ")
        measure = x.measure.replace("_", " ") + (" %" if share else "")
        rows.append((name, x.attention, str(x.items), str(x.labels), measure, value, ends or DASH))
    names = ("run", "attention", f"{options.split} items", "labels", "measure", "value", "95 % interval")
    open_console().print(Table.of("", names, rows, numbers=False))
    if options.output:
        results = [{"run": name, **asdict(x)} for name, x in scores.items()]
        write_json({"split": options.split, "results": results}, options.output)
