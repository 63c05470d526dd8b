"""Error rates of trained classifiers on a split, with 95 % intervals.

python -m asr_recipes.longrange.evaluate runs=[exp/longrange/pathfinder/full,exp/longrange/pathfinder/cast-16]
"""

import sys
from dataclasses import asdict, dataclass

import numpy as np
import torch
from asr_recipes.longrange.data import EvaluationBatches
from asr_recipes.longrange.task import load_run
from rich.table import Table

from asr.attention import parse_name
from asr.config import option, parse
from asr.console import open_console, track
from asr.errors import UserError, run_program
from asr.files import write_json
from asr.scoring.error_rates import bootstrap_interval


@dataclass
class Options:
    """Which runs to evaluate."""

    runs: list[str] = option([], help="run folders of recipe=longrange")
    split: str = option("test", help="dev | test", choices=("dev", "test"))
    items: int = option(1000, help="items, the first of the split", minimum=1, maximum=1_000_000)
    attention: str = option("", help="mechanism to exchange for the trained one; empty: the trained one")
    output: str = option("", help="JSON file for the results; empty: none")


@dataclass(frozen=True)
class Result:
    """Errors of a run.

    Attributes:
        run: run folder.
        attention: mechanism.
        items: number of items.
        error_rate: fraction of wrong labels.
        interval: 95 % bootstrap interval over the items.
    """

    run: str
    attention: str
    items: int
    error_rate: float
    interval: tuple[float, float]


def evaluate(run: str, split: str, items: int, attention: str = "") -> Result:
    """Classify the first items of a split.

    Args:
        run: run folder.
        split: `dev` or `test`.
        items: maximum number of items.
        attention: mechanism; empty: the one the run was trained with.

    Raises:
        UserError: no such run, or a mechanism that can't be exchanged.
    """
    model, source, options = load_run(run)
    if attention:
        model.set_attention(parse_name(attention).name, model.backend)
    recipe = options.recipe
    batches = EvaluationBatches(source, split, recipe.batch, items)
    wrong: list[bool] = []
    with torch.no_grad():
        for number in track(range(len(batches)), run):
            batch = batches[number]
            wrong += (model(batch.values, batch.lengths).argmax(-1) != batch.labels).tolist()
    errors = np.array(wrong, dtype=np.int64)
    interval = bootstrap_interval(errors, np.ones_like(errors))
    return Result(run, model.attention, len(errors), float(errors.mean()), interval)


def main(options: Options) -> None:
    """Evaluate the runs and print a table."""
    if not options.runs:
        raise UserError("runs=[]: expected run folders, found none")
    results = [evaluate(run, options.split, options.items, options.attention) for run in options.runs]
    table = Table("run", "attention", f"{options.split} items", "error %", "95 % interval")
    for x in results:
        low, high = (100 * end for end in x.interval)
        rate = f"{100 * x.error_rate:.1f}"
        table.add_row(x.run, x.attention, str(x.items), rate, f"{low:.1f} … {high:.1f}")
    open_console().print(table)
    if options.output:
        write_json({"split": options.split, "results": [asdict(x) for x in results]}, options.output)


if __name__ == "__main__":
    sys.exit(run_program("evaluate", lambda: main(parse(Options, sys.argv[1:]))))
