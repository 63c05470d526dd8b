"""Cells of a comparison (a training, evaluation or timing each): key, state on disk, and work.

The key is a hash of everything that the outcome depends on. A cell that is `done` under its key never runs
again. `python -m asr.compare.cell <folder> <cell> …` is a worker process: it runs cells one after the other,
reports through their states, and ends when its parent's death closes its standard input.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import lightning
import torch
from rich.console import Console

from asr.compare.timing import LabelPasses, Passes, SpeechPasses, forward_times
from asr.config import from_dict, nested
from asr.environment import pick_device
from asr.errors import in_words
from asr.files import atomic_path, digest, read_as, write_json
from asr.recognizer import Recognizer
from asr.scoring.options import ScoreOptions
from asr.scoring.run import score_paths
from asr.search.options import DecodeOptions
from asr.training.config import train_options_from
from asr.training.labelling import evaluate, load_task
from asr.training.progress import position
from asr.training.ranks import global_rank
from asr.training.run import train

Kind = Literal["training", "evaluation", "timing"]
Status = Literal["missing", "running", "done", "failed"]
GRACE_S = 30.0  # for a training to end its step and write a resume point


@dataclass(frozen=True)
class Cell:
    """A unit of work.

    Attributes:
        name: folder, relative to the comparison's.
        kind: training | evaluation | timing.
        settings: everything the outcome depends on, as plain data.
        needs: name of the cell that must be done first; empty: none.
        unkeyed: options for the worker that the outcome does not depend on.
    """

    name: str
    kind: Kind
    settings: dict[str, Any]
    needs: str = ""
    unkeyed: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Return 16 hex digits of the SHA-256 of kind and settings."""
        text = json.dumps([self.kind, self.settings], sort_keys=True)
        return digest(text, 16)


@dataclass
class State:
    """State of a cell on disk.

    Attributes:
        key: key of the cell when the state was written.
        settings: settings of the cell when the state was written.
        status: missing | running | done | failed.
        error: one line if the cell failed.
        seconds: run time.
        result: values that the worker returned.
    """

    key: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    status: Status = "missing"
    error: str | None = None
    seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)


def write_cell(folder: Path, cell: Cell) -> None:
    """Write cell.json for the worker, and remove the state of an earlier attempt."""
    write_json(asdict(cell), folder / cell.name / "cell.json")
    (folder / cell.name / "state.json").unlink(missing_ok=True)


def read_cell(folder: Path, name: str) -> Cell:
    """Read cell.json."""
    return read_as(Cell, folder / name / "cell.json", "a cell of a comparison")


def write_state(folder: Path, cell: Cell, status: Status, **values: Any) -> None:
    """Write state.json; `values` are further fields of `State`."""
    state = State(cell.key, cell.settings, status, **values)
    write_json(asdict(state), folder / cell.name / "state.json")


def read_state(folder: Path, name: str) -> State:
    """Read state.json; the state is `missing` without it."""
    path = folder / name / "state.json"
    return read_as(State, path, "the state of a cell") if path.exists() else State()


def current_state(folder: Path, cell: Cell) -> State:
    """Return the state of the cell with exactly these settings; `missing` if it has other ones on disk."""
    state = read_state(folder, cell.name)
    return state if state.key == cell.key else State()


def is_done(folder: Path, cell: Cell) -> bool:
    """Return whether the cell succeeded with exactly these settings."""
    return current_state(folder, cell).status == "done"


def log_path(folder: Path, name: str) -> Path:
    """Return the log of a cell's job; all evaluations of a model share one."""
    return folder / "logs" / ("-".join(Path(name).parts[:3]) + ".txt")


def write_fraction(path: Path, fraction: float) -> None:
    """Write the completed fraction of a running cell, 0 to 1, for the process that displays progress."""
    with atomic_path(path, sync=False) as temporary:
        temporary.write_text(f"{fraction:.4f}")


def read_fraction(folder: Path, name: str) -> float:
    """Return the completed fraction of a running cell, 0 to 1."""
    try:
        return float((folder / name / "fraction").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0.0


def main(arguments: list[str]) -> None:
    """Run the named cells of a comparison's folder."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = Path(arguments[0])
    for name in arguments[1:]:
        work(folder, read_cell(folder, name))


def work(folder: Path, cell: Cell) -> None:
    """Run a cell and write its state; an exception becomes the cell's error.

    Lightning starts the other ranks of a training like this process; they write nothing.
    """
    first = global_rank(devices=1) == 0
    print(f"=== {cell.name}", flush=True)
    if first:
        write_fraction(folder / cell.name / "fraction", 0.0)
        write_state(folder, cell, "running")
    started = time.monotonic()
    try:
        result = {"training": _train, "evaluation": _evaluate, "timing": _time}[cell.kind](folder, cell)
    except Exception as error:
        traceback.print_exc()
        if first:
            write_state(folder, cell, "failed", error=in_words(error), seconds=time.monotonic() - started)
        return
    if first:
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

    def advance(fraction: float) -> None:
        write_fraction(folder / cell.name / "fraction", fraction)

    if "options" not in cell.settings:  # of decoding
        split, attention = cell.settings["split"], cell.settings["attention"]
        task, data = load_task(str(run), attention, pick_device(cell.settings["device"]))
        return asdict(evaluate(task, data, split, advance=advance))
    options = from_dict(DecodeOptions, cell.settings["options"] | cell.unkeyed, cell.name)
    options.output = str(folder / cell.name)
    recognizer = Recognizer.load_as(run, options)
    recognizer.decode(options, weights_in=folder / cell.name, advance=advance)
    score_paths([options.output], ScoreOptions(details=False), console=Console(file=sys.stdout))
    return {}


def _time(folder: Path, cell: Cell) -> dict[str, Any]:
    settings = cell.settings
    device = pick_device(settings["device"])
    models = [
        (folder / read_state(folder, model["training"]).result["run"], model["attention"])
        for model in settings["models"]
    ]
    passes: Passes
    if "manifest" in settings:
        passes = SpeechPasses(models, Path(settings["manifest"]), settings["frames_per_batch"], device)
    else:
        passes = LabelPasses(models, settings["split"], device)
    times, conditions = forward_times(
        passes,
        repeats=settings["repeats"],
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
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(130)


if __name__ == "__main__":
    main(sys.argv[1:])
