"""Error rates, or bits per token, of models of copy, language and longrange on a split, with 95 % intervals.

python -m asr_recipes.evaluate runs=[exp/language/full:causal=true,exp/language/linear:causal=true]
"""

import sys
from dataclasses import asdict, dataclass

import torch
from rich.table import Table

from asr.attention import parse_name
from asr.config import option, parse
from asr.console import is_share, open_console, track
from asr.errors import UserError, run_program
from asr.files import write_json
from asr.scoring.error_rates import bootstrap_interval
from asr.training.labelling import load_task


@dataclass
class Options:
    """Which runs to evaluate."""

    runs: list[str] = option([], help="run folders of recipes with their own task")
    split: str = option("test", help="dev | test", choices=("dev", "test"))
    items: int = option(
        0,
        help="sequences or other items to evaluate on; 0: the whole split, or 1,000 generated items",
        maximum=100_000_000,
    )
    attention: str = option("", help="mechanism to exchange for the trained one; empty: the trained one")
    output: str = option("", help="JSON file for the results; empty: none")


@dataclass(frozen=True)
class Result:
    """The measure of a run.

    Attributes:
        run: run folder.
        attention: mechanism.
        measure: `error`, a fraction, or `bits_per_character`, `bits_per_token`.
        value: the measure.
        interval: its 95 % bootstrap interval over the items.
        items, labels: numbers of items, and of labels in them: masked symbols, tokens or classes.
    """

    run: str
    attention: str
    measure: str
    value: float
    interval: tuple[float, float]
    items: int
    labels: int


def evaluate(run: str, split: str, items: int = 0, attention: str = "") -> Result:
    """Predict the labels of a split.

    Args:
        run: run folder.
        split: `dev` or `test`.
        items: maximum number of items; 0: all, or 1,000 if they are generated without end.
        attention: mechanism; empty: the one the run was trained with.

    Raises:
        UserError: see `load_task`, or a mechanism that can't be exchanged.
    """
    task, data = load_task(run)
    if attention:
        task.model.set_attention(parse_name(attention).name)
    batches = data.held_out(split, items)
    with torch.no_grad():
        scores = [task.scores(batches[i])[1:] for i in track(range(len(batches)), run)]
    errors, labels = (torch.cat(x).double().numpy() for x in zip(*scores, strict=True))
    return Result(
        run,
        task.model.attention,
        task.error_rate_name.removeprefix("dev_"),
        float(errors.sum() / labels.sum()),
        bootstrap_interval(errors, labels),
        len(errors),
        int(labels.sum()),
    )


def main(options: Options) -> None:
    """Evaluate the runs and print a table."""
    if not options.runs:
        raise UserError("runs=[]: expected run folders, found none")
    results = [evaluate(run, options.split, options.items, options.attention) for run in options.runs]
    table = Table("run", "attention", f"{options.split} items", "labels", "measure", "value", "95 % interval")
    for x in results:
        scale, digits, unit = (100, 1, " %") if is_share(x.measure) else (1, 3, "")
        value, low, high = (f"{scale * number:.{digits}f}" for number in (x.value, *x.interval))
        value += "" if unit else f" (perplexity {2**x.value:.2f})"
        measure = x.measure.replace("_", " ") + unit
        table.add_row(x.run, x.attention, str(x.items), str(x.labels), measure, value, f"{low} … {high}")
    open_console().print(table)
    if options.output:
        write_json({"split": options.split, "results": [asdict(x) for x in results]}, options.output)


if __name__ == "__main__":
    sys.exit(run_program("evaluate", lambda: main(parse(Options, sys.argv[1:]))))
