"""Cells of a comparison, each a training, evaluation or timing: key, and state on disk.

The key is a hash of everything that the outcome depends on. A cell that is `done` under its key never runs
again.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from asr.attention.table import code_digests
from asr.config import flat
from asr.files import atomic_path, checked_entries, digest, read_as, write_record

Result = TypeVar("Result")
Kind = Literal["training", "evaluation", "timing"]
Status = Literal["missing", "running", "done", "failed"]
CELL, STATE = "cell.json", "state.json"
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
        # The program is no part of it: a commit must not throw trainings away.
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
        result: what the worker returned, which `result_of` reads: a `TrainingResult`, `TimingResult` or
            `LabelScore`; `ItemErrors` for an evaluation of speech, whose rates lie in its folder.
    """

    key: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    status: Status = "missing"
    error: str | None = None
    seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingResult:
    """Where a training is.

    Attributes:
        run: run folder, relative to the comparison's.
        reused: whether the run existed before the comparison.
    """

    run: str
    reused: bool = False


def code_entry(*attentions: str) -> dict[str, Any]:
    """Return an entry of a cell's settings: digests of the files of mechanisms that are the user's own."""
    code = code_digests(*attentions)
    return {"code": code} if code else {}


def write_cell(folder: Path, cell: Cell) -> None:
    """Write cell.json for the worker, and replace the state of an earlier attempt.

    The new state has the settings: a job may be stopped before it starts, with files of that attempt left.
    """
    write_record(asdict(cell), folder / cell.name / CELL)
    write_state(folder, cell, "missing")


def read_cell(folder: Path, name: str) -> Cell:
    """Read cell.json; raise UserError if it is missing or describes no cell."""
    return read_as(Cell, folder / name / CELL, "a cell of a comparison")


def write_state(folder: Path, cell: Cell, status: Status, **values: Any) -> None:
    """Write state.json; `values` are further fields of `State`."""
    state = State(cell.key, cell.settings, status, **values)
    write_record(asdict(state), folder / cell.name / STATE)


def read_state(folder: Path, name: str) -> State:
    """Read state.json; the state is `missing` without it."""
    path = folder / name / STATE
    return read_as(State, path, "the state of a cell") if path.exists() else State()


def current_state(folder: Path, cell: Cell) -> State:
    """Return the state of the cell with exactly these settings; `missing` if it has other ones on disk."""
    state = read_state(folder, cell.name)
    return state if state.key == cell.key else State()


def result_of(schema: type[Result], folder: Path, name: str, state: State) -> Result:
    """Return the result in a cell's state.

    Args:
        schema: dataclass of the result; entries that it lacks are ignored.
        folder: folder of the comparison.
        name: name of the cell.
        state: state of the cell.

    Raises:
        UserError: the result doesn't fit the schema; the message names state.json and the entry.
    """
    return schema(**checked_entries(schema, state.result, f"{folder / name / STATE}: result"))


def training_result(folder: Path, name: str, state: State) -> TrainingResult | None:
    """Return where a training is; None if it isn't done."""
    return result_of(TrainingResult, folder, name, state) if state.result else None


def trained_run(folder: Path, name: str) -> Path:
    """Return the run folder of a finished training."""
    return folder / result_of(TrainingResult, folder, name, read_state(folder, name)).run


def as_stored(folder: Path, cell: Cell, defaults: Mapping[str, Any]) -> Cell:
    """Return a cell with the settings of its state on disk, if they mean the same.

    They do if they differ only by options that the program has lost since, or gained with the values that
    stood for them before: these leave results as they were, as any change of the program that keeps a key.
    Keys don't simply leave out defaults, because a default that changes later has to change them.

    Args:
        folder: folder of the comparison.
        cell: cell with the options of this program.
        defaults: values of these options where stored ones lack them, by dotted name.
    """
    before = read_state(folder, cell.name).settings
    if not isinstance(cell.settings.get("options"), dict) or not isinstance(before.get("options"), dict):
        return cell
    options, stored = flat(cell.settings["options"]), flat(before["options"])
    gained = options.keys() - stored.keys()
    if not all(name in defaults and options[name] == defaults[name] for name in gained):
        return cell
    kept = {name: value for name, value in options.items() if name not in gained}
    still = {name: value for name, value in stored.items() if name in options}
    same = kept == still and {**cell.settings, "options": {}} == {**before, "options": {}}
    return replace(cell, settings=before) if same else cell


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
