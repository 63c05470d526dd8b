"""The grid of figure 5: accuracy on masked copy by sequence length and number of clusters or hash rounds.

    python -m asr_recipes.copy.sweep
    python -m asr_recipes.copy.sweep lengths=[31] attentions=[full,i-clustered-15] train=[trainer.threads=1]

Shorter sequences are trained first. Finished cells are skipped, interrupted ones resume.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from asr import config
from asr.config import option
from asr.console import open_console
from asr.errors import run_program
from asr.text.files import write_table
from asr.training.config import train_options
from asr.training.run import train

CLUSTERS = (15, 30, 60, 100)
ROUNDS = (1, 4, 8, 16)
GRID = [
    "full",
    *(f"i-clustered-{clusters}" for clusters in CLUSTERS),
    *(f"clustered-{clusters}" for clusters in CLUSTERS),
    *(f"lsh-{rounds}" for rounds in ROUNDS),
]


@dataclass
class Options:
    """Options of the sweep."""

    lengths: list[int] = option(
        [31, 63, 127, 255], help="L, the number of symbols in each half", minimum=1, maximum=100_000
    )
    attentions: list[str] = option(GRID, help="attention mechanisms")
    folder: str = option("exp/copy", help="folder for results; run folders are <folder>/<length>/<attention>")
    seed: int = option(0, help="random seed for initialisation and sequences", maximum=2**32 - 1)
    train: list[str] = option([], help="further options of asr train, e.g. [trainer.threads=1]")


def cells(options: Options) -> Iterator[tuple[int, str]]:
    """Yield (length, attention), shorter sequences first."""
    for length in sorted(options.lengths):
        for attention in options.attentions:
            yield length, attention


def cell_folder(options: Options, length: int, attention: str) -> Path:
    """Return the run folder of a cell."""
    return Path(options.folder, str(length), attention)


def sweep(options: Options) -> None:
    """Train the unfinished cells, write results.tsv after each, and print the grid."""
    for length, attention in cells(options):
        words = ["recipe=copy", f"recipe.length={length}", f"attention={attention}", f"seed={options.seed}"]
        words += [f"run={cell_folder(options, length, attention)}", "resume=auto", *options.train]
        train(train_options(words))
        write_results(options)
    open_console().print(grid(options))


def results(options: Options) -> dict[tuple[int, str], tuple[float, int]]:
    """Return the accuracy (0 … 1) and the number of steps of the finished cells."""
    found = {}
    for length, attention in cells(options):
        path = cell_folder(options, length, attention) / "training.json"
        if path.exists():
            summary = json.loads(path.read_text())
            found[length, attention] = (1 - summary["dev_error_rate"], summary["steps"])
    return found


def write_results(options: Options) -> None:
    """Write results.tsv with one row per finished cell."""
    rows = [
        [length, attention, f"{accuracy:.4f}", steps]
        for (length, attention), (accuracy, steps) in results(options).items()
    ]
    write_table(Path(options.folder, "results.tsv"), ["length", "attention", "accuracy", "steps"], rows)


def grid(options: Options) -> Table:
    """Return the grid: accuracy in percent and, in parentheses, steps."""
    table = Table("attention", title="Masked copy: accuracy in % (steps)", title_justify="left")
    for length in sorted(options.lengths):
        table.add_column(f"L={length}", justify="right", no_wrap=True)
    found = results(options)
    for attention in options.attentions:
        row = []
        for length in sorted(options.lengths):
            accuracy, steps = found.get((length, attention), (None, 0))
            row.append("–" if accuracy is None else f"{_colour(accuracy)}{100 * accuracy:.1f} ({steps})[/]")
        table.add_row(attention, *row)
    return table


def _colour(accuracy: float) -> str:
    return "[green]" if accuracy >= 0.999 else "[yellow]" if accuracy >= 0.9 else "[red]"


if __name__ == "__main__":
    sys.exit(run_program("sweep", lambda: sweep(config.parse(Options, sys.argv[1:]))))
