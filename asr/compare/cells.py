"""Cells: the pieces of work of a comparison, each with a key, a folder and a state on disk.

A cell's key is a hash of everything its outcome depends on. A cell whose state says `done` under its key is
never worked on again.
"""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from asr.files import atomic_path, write_json

Kind = Literal["training", "evaluation", "timing"]
Status = Literal["missing", "running", "done", "failed"]


@dataclass(frozen=True)
class Cell:
    """A piece of work.

    Attributes:
        name: its folder below the comparison's.
        kind: training | evaluation | timing.
        key: hash of `settings`.
        settings: everything it depends on, plain data.
        needs: name of the cell that must be done before; empty: none.
        free: what its worker is told besides, and no outcome depends on.
    """

    name: str
    kind: Kind
    settings: dict[str, Any]
    needs: str = ""
    free: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Return the hash of kind and settings."""
        return digest([self.kind, self.settings])


@dataclass
class State:
    """How a cell stands.

    Attributes:
        key: of the cell that this is the state of.
        settings: of that cell, to say what has changed.
        status: missing | running | done | failed.
        error: one line, where it failed.
        seconds: that the cell took.
        result: what its worker has to say.
    """

    key: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    status: Status = "missing"
    error: str | None = None
    seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)


def digest(value: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def read_cell(folder: Path, name: str) -> Cell:
    """Return a cell as it was planned."""
    return Cell(**json.loads((folder / name / "cell.json").read_text()))


def log_path(folder: Path, name: str) -> Path:
    """Return the log of the job that a cell belongs to: the cells of one model share it."""
    return folder / "logs" / ("-".join(Path(name).parts[:3]) + ".txt")


def write_cell(folder: Path, cell: Cell) -> None:
    """Keep a planned cell, for the process that will work on it."""
    (folder / cell.name).mkdir(parents=True, exist_ok=True)
    write_json(asdict(cell), folder / cell.name / "cell.json")


def read_state(folder: Path, name: str) -> State:
    """Return how a cell stands; `missing` where nobody has begun."""
    path = folder / name / "state.json"
    return State(**json.loads(path.read_text())) if path.exists() else State()


def write_state(folder: Path, cell: Cell, status: Status, **values: Any) -> None:
    """Keep how a cell stands."""
    state = State(cell.key, cell.settings, status, **values)
    write_json(asdict(state), folder / cell.name / "state.json")


def is_done(folder: Path, cell: Cell) -> bool:
    """Return whether the cell has been worked on with these very settings, successfully."""
    state = read_state(folder, cell.name)
    return state.status == "done" and state.key == cell.key


def discard(folder: Path, cell: Cell) -> None:
    """Remove what was made with other settings."""
    shutil.rmtree(folder / cell.name, ignore_errors=True)


def write_fraction(path: Path, fraction: float) -> None:
    """Tell the watching process how far a cell is, 0 … 1."""
    with atomic_path(path, sync=False) as temporary:
        temporary.write_text(f"{fraction:.4f}")


def read_fraction(folder: Path, name: str) -> float:
    """Return how far a running cell is, 0 … 1."""
    try:
        return float((folder / name / "fraction").read_text())
    except (OSError, ValueError):
        return 0.0
