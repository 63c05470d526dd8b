"""The worker process: runs cells one after the other, `python -m asr.compare.worker <folder> <cell> …`.

It reports through the states of the cells. It exits as soon as its parent dies, which closes the other end of
its standard input.
"""

import os
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning
import torch
from rich.console import Console

from asr.compare.cell import Cell, read_cell, read_state, write_fraction, write_state
from asr.compare.timing import forward_times
from asr.config import from_dict, nested
from asr.environment import pick_device
from asr.errors import UserError
from asr.recognizer import Recognizer
from asr.scoring.run import ScoreOptions, score_paths
from asr.search.decode import DecodeOptions
from asr.training.config import train_options_from
from asr.training.progress import position
from asr.training.run import train


def main(words: list[str]) -> None:
    """Run the named cells of a comparison's folder."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = Path(words[0])
    for name in words[1:]:
        work(folder, read_cell(folder, name))


def work(folder: Path, cell: Cell) -> None:
    """Run a cell and write its state; an exception becomes the cell's error."""
    print(f"=== {cell.name}", flush=True)
    write_fraction(folder / cell.name / "fraction", 0.0)
    write_state(folder, cell, "running")
    started = time.monotonic()
    try:
        result = {"training": _train, "evaluation": _evaluate, "timing": _time}[cell.kind](folder, cell)
    except Exception as error:
        traceback.print_exc()
        line = error.line if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        first = (line.strip().splitlines() or [type(error).__name__])[0]
        write_state(folder, cell, "failed", error=first, seconds=time.monotonic() - started)
        return
    write_state(folder, cell, "done", seconds=time.monotonic() - started, result=result)


class FractionWriter(lightning.Callback):
    """Writes the completed fraction of training, at most twice a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0.0

    def on_train_batch_end(self, trainer: lightning.Trainer, task: Any, *_: Any) -> None:
        """Write the fraction if half a second has passed."""
        if trainer.is_global_zero and time.monotonic() - self.written > 0.5:
            self.written = time.monotonic()
            done, total = position(task)
            write_fraction(self.path, done / total)


def _train(folder: Path, cell: Cell) -> dict[str, Any]:
    run = folder / cell.name
    values = nested(cell.settings["options"] | cell.unkeyed | {"run": str(run), "resume": "auto"})
    options = train_options_from(values, str(run))
    if cell.needs:
        options.init_from = str(folder / read_state(folder, cell.needs).result["run"])
    train(options, [FractionWriter(run / "fraction")])
    return {"run": cell.name}


def _evaluate(folder: Path, cell: Cell) -> dict[str, Any]:
    if cell.settings["threads"]:
        torch.set_num_threads(cell.settings["threads"])
    run = folder / read_state(folder, cell.needs).result["run"]
    options = from_dict(DecodeOptions, cell.settings["options"] | cell.unkeyed, cell.name)
    options.output = str(folder / cell.name)
    recognizer = Recognizer.load_as(run, options)
    recognizer.decode(
        options,
        weights_in=folder / cell.name,
        advance=lambda fraction: write_fraction(folder / cell.name / "fraction", fraction),
    )
    score_paths([options.output], ScoreOptions(details=False), console=Console(file=sys.stdout))
    return {}


def _time(folder: Path, cell: Cell) -> dict[str, Any]:
    settings = cell.settings
    device = pick_device(settings["device"])
    models = [
        (folder / read_state(folder, model["training"]).result["run"], model["attention"])
        for model in settings["models"]
    ]
    times, conditions = forward_times(
        models,
        Path(settings["manifest"]),
        repeats=settings["repeats"],
        frames_per_batch=settings["frames_per_batch"],
        device=device,
        threads=settings["threads"],
        advance=lambda fraction: write_fraction(folder / cell.name / "fraction", fraction),
    )
    return {"times": times, "conditions": asdict(conditions)}


def _end_with_parent() -> None:
    # Not through sys.stdin: reading it holds its lock while data loaders fork, and a forked process deadlocks
    # when it closes its stdin.
    while os.read(0, 1):
        pass
    os._exit(130)


if __name__ == "__main__":
    main(sys.argv[1:])
