"""The last lines that a training prints: its best validation, hypotheses of it, and the next command."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from asr.records.heard import read_heard
from asr.records.run_folder import RunFolder, best_measures
from asr.training.options import TrainConfig, recipe_task
from asr.training.progress import rate_words

PAIRS = 3  # development utterances
WIDEST = 100  # characters of a text


def closing(options: TrainConfig, folder: Path, measure: str) -> Iterator[str]:
    """Yield the best validation, some references with hypotheses, and the command that decodes or evaluates.

    Args:
        options: options of the training.
        folder: run folder.
        measure: name of the validation measure, e.g. `dev_per`.
    """
    run = RunFolder(folder)
    if best := run.best():
        percent, _, stem = best_measures(best[0])
        at = re.search(r"-step(\d+)", stem)
        step = int(at[1]) if at else 0
        yield f"best {rate_words(measure, percent / 100)}, at step {step}"
        for row in [row for row in read_heard(run.heard) if row.step == step][:PAIRS]:
            yield f"  reference   {textwrap.shorten(row.reference, WIDEST, placeholder=' …')}"
            yield f"  hypothesis  {textwrap.shorten(row.hypothesis, WIDEST, placeholder=' …') or '(nothing)'}"
    name = "evaluate" if recipe_task(options.recipe.name) else "decode"
    yield f"next: asr {name} {folder}"
