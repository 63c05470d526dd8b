"""`asr evaluate`: error rates, or bits per token, of models of copy, language and longrange."""

from dataclasses import asdict, dataclass
from pathlib import Path

from rich.progress import TaskID
from rich.table import Table

from asr.config import option
from asr.console import is_share, open_console, progress
from asr.environment import pick_device
from asr.errors import UserError
from asr.files import check_writable, write_json

POSITIONAL = "<run folder> …"


@dataclass
class Options:
    """What to evaluate on."""

    split: str = option("test", help="dev | test", affects="result", choices=("dev", "test"))
    items: int = option(
        0,
        help="sequences or other items to evaluate on; 0: the whole split, or 2,000 generated items",
        affects="result",
        maximum=100_000_000,
    )
    attention: str = option(
        "", help="mechanism to exchange for the trained one; empty: the trained one", affects="result"
    )
    device: str = option("auto", help="auto | cpu | cuda | cuda:<number>", affects="cost")
    output: str = option("", help="JSON file for the results; empty: none", affects="place")


def run(paths: list[Path], options: Options) -> None:
    """Evaluate the runs and print a table.

    Raises:
        UserError: see `load_task` and `evaluate`.
    """
    from asr.training.labelling import evaluate, load_task  # loads Lightning

    if not paths:
        raise UserError(f"asr evaluate takes {POSITIONAL}, found none")
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
    table = Table("run", "attention", f"{options.split} items", "labels", "measure", "value", "95 % interval")
    for name, x in scores.items():
        scale, digits, unit = (100, 1, " %") if is_share(x.measure) else (1, 3, "")
        value = f"{scale * x.value:.{digits}f}" + ("" if unit else f" (perplexity {2**x.value:.2f})")
        interval = " … ".join(f"{scale * bound:.{digits}f}" for bound in x.interval) if x.interval else "–"
        measure = x.measure.replace("_", " ") + unit
        table.add_row(name, x.attention, str(x.items), str(x.labels), measure, value, interval)
    open_console(markup=False).print(table)
    if options.output:
        results = [{"run": name, **asdict(x)} for name, x in scores.items()]
        write_json({"split": options.split, "results": results}, options.output)
