"""Bits per character or token of trained language models on a split, with 95 % intervals.

python -m asr_recipes.language.evaluate runs=[exp/language/full:causal=true]
"""

import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from asr_recipes.language.data import EvaluationSegments
from asr_recipes.language.task import Options as Recipe
from asr_recipes.language.task import build_model, build_text, token_losses
from rich.table import Table

from asr.config import option, parse
from asr.console import open_console, track
from asr.errors import UserError, run_program
from asr.files import write_json
from asr.model import checkpoint
from asr.model.attention_model import restore
from asr.scoring.error_rates import bootstrap_interval
from asr.training.config import run_options


@dataclass
class Options:
    """Which runs to evaluate."""

    runs: list[str] = option([], help="run folders of recipe=language")
    split: str = option("test", help="dev | test", choices=("dev", "test"))
    segments: int = option(
        0, help="sequences, spread evenly over the split; 0: all of it", maximum=100_000_000
    )
    output: str = option("", help="JSON file for the results; empty: none")


@dataclass(frozen=True)
class Result:
    """Cross-entropy of a run.

    Attributes:
        run: run folder.
        attention: mechanism.
        unit: what a token is, `character` or `token`.
        tokens: number of predicted tokens.
        bits: bits per token.
        interval: 95 % bootstrap interval of the bits over the sequences.
    """

    run: str
    attention: str
    unit: str
    tokens: int
    bits: float
    interval: tuple[float, float]

    @property
    def perplexity(self) -> float:
        """Perplexity per token."""
        return 2.0**self.bits


def evaluate(run: str, split: str, most: int = 0) -> Result:
    """Predict the tokens of a split from those before in the same sequence.

    Args:
        run: run folder.
        split: `dev` or `test`.
        most: maximum number of sequences; 0: all.

    Raises:
        UserError: no such run, or its text is missing.
    """
    options = run_options(run, Recipe)
    recipe = options.recipe
    assert isinstance(recipe, Recipe)
    text = build_text(options)
    model = build_model(options, text.vocabulary)
    restore(model, checkpoint.load(checkpoint.find(Path(run)))["model"], options.backend)
    model.eval()
    batches = EvaluationSegments(text.tokens[split], recipe.length, recipe.batch, most)
    with torch.no_grad():
        losses = [token_losses(model, batches[i]).sum(dim=1) for i in track(range(len(batches)), run)]
    bits = torch.cat(losses).double().numpy() / math.log(2)
    tokens = np.full(len(bits), recipe.length)
    interval = bootstrap_interval(bits, tokens)
    return Result(run, model.attention, text.unit, int(tokens.sum()), bits.sum() / tokens.sum(), interval)


def main(options: Options) -> None:
    """Evaluate the runs and print a table."""
    if not options.runs:
        raise UserError("runs=[]: expected run folders, found none")
    results = [evaluate(run, options.split, options.segments) for run in options.runs]
    table = Table(
        "run", "attention", f"{options.split} tokens", "bits per", "", "95 % interval", "perplexity"
    )
    for x in results:
        low, high = x.interval
        cells = (f"{x.bits:.3f}", f"{low:.3f} … {high:.3f}", f"{x.perplexity:.2f}")
        table.add_row(x.run, x.attention, str(x.tokens), x.unit, *cells)
    open_console().print(table)
    if options.output:
        write_json({"split": options.split, "results": [asdict(x) for x in results]}, options.output)


if __name__ == "__main__":
    sys.exit(run_program("evaluate", lambda: main(parse(Options, sys.argv[1:]))))
