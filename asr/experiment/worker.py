"""The worker process of a comparison, which runs cells one after another.

`python -m asr.experiment.worker [--code=<file or module> …] <folder> <cell> …` ends when its standard input
is closed by its parent's death.
"""

import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch

from asr.attention.table import layer_runs
from asr.config import nested, user_code
from asr.environment import pick_device
from asr.errors import UserError
from asr.experiment.cell import (
    GRACE_S,
    Cell,
    TrainingResult,
    read_state,
    stored_cell,
    trained_run,
    write_fraction,
)
from asr.experiment.labels import Labels
from asr.experiment.processes import CODE, POLL_S
from asr.experiment.records import TimingResult
from asr.experiment.speech import Speech
from asr.experiment.timing import forward_times
from asr.experiment.variant import Variant
from asr.files import is_locked
from asr.records.job import Job
from asr.training.config import train_options_from
from asr.training.progress import position
from asr.training.ranks import global_rank
from asr.training.run import train


def main(arguments: list[str]) -> None:
    """Run the named cells of a comparison's folder."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    user_code.load_all(x.removeprefix(CODE) for x in arguments if x.startswith(CODE))
    place, *names = [x for x in arguments if not x.startswith(CODE)]
    folder = Path(place)
    for name in names:
        work(folder, stored_cell(name, read_state(folder, name)))


def work(folder: Path, cell: Cell) -> None:
    """Run a cell, and record the outcome in its journal.

    Lightning starts the other ranks of a training with this command, too; they don't write to the journal.
    """
    job = cell.job(folder)
    print(f"=== {cell.name}", flush=True)
    if global_rank(devices=1) == 0:
        until = time.monotonic() + GRACE_S
        while is_locked(folder / cell.name) and time.monotonic() < until:
            time.sleep(POLL_S)  # the worker of a comparison that was killed ends its step
        write_fraction(folder / cell.name / "fraction", 0.0)
    else:  # another rank may end early, when the cell isn't done yet
        job = Job(None, job.identity)
    function = {"training": _train, "evaluation": _evaluate, "timing": _time}[cell.kind]

    def checked() -> dict[str, Any]:
        _check_code(cell)
        return function(folder, cell)

    job.run(checked)


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


def _check_code(cell: Cell) -> None:
    """Raise UserError if a mechanism's code isn't loaded, or has changed since the comparison began."""
    models = [cell.settings, cell.settings.get("options", {}), *cell.settings.get("models", [])]
    for model in models:
        if name := Variant.read(model.get("variant", "")).attention or model.get("attention"):
            layer_runs(name)
    if line := user_code.changed(cell.settings.get("code", {})):
        raise UserError(line)


def _train(folder: Path, cell: Cell) -> dict[str, Any]:
    run = folder / cell.name
    values = cell.settings["options"] | cell.unkeyed | {"run": str(run), "resume": "auto"}
    if cell.needs:
        values["init_from"] = str(trained_run(folder, cell.needs))
    options = train_options_from(nested(values), str(run))
    train(options, [FractionWriter(run / "fraction")])
    return asdict(TrainingResult(cell.name))


def _evaluate(folder: Path, cell: Cell) -> dict[str, Any]:
    if cell.settings["threads"]:
        torch.set_num_threads(cell.settings["threads"])
    run = trained_run(folder, cell.needs)
    advance = partial(write_fraction, folder / cell.name / "fraction")
    return _workload(cell).evaluate(run, folder / cell.name, cell, advance)


def _workload(cell: Cell) -> type[Speech] | type[Labels]:
    """Return the workload of an evaluation or timing, inferred from its settings, which don't name it."""
    return Speech if cell.settings.keys() & {"options", "manifest"} else Labels


def _time(folder: Path, cell: Cell) -> dict[str, Any]:
    settings = cell.settings
    device = pick_device(settings["device"])
    models = [(trained_run(folder, model["training"]), model["variant"]) for model in settings["models"]]
    times, conditions = forward_times(
        _workload(cell).passes(models, settings, device),
        repeats=settings["repeats"],
        device=device,
        threads=settings["threads"],
        advance=partial(write_fraction, folder / cell.name / "fraction"),
    )
    return asdict(TimingResult(times, conditions))


def _end_with_parent() -> None:
    # Not through sys.stdin: reading it would hold its lock while data loaders fork, and a forked process
    # would deadlock when it closes stdin.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(130)


if __name__ == "__main__":
    main(sys.argv[1:])
