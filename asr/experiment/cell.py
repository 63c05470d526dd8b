"""Cells of a comparison: the jobs that train, evaluate and time, each in its own folder.

The program isn't part of their identity, so a commit invalidates none. A finished cell never runs again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from asr.attention.table import code_digests
from asr.config import flat
from asr.files import atomic_path, digest, read_record
from asr.records.job import BEGUN, Job, Journal

JOURNAL = "job.jsonl"
STATE = "state.json"  # written by earlier versions instead of a journal
GRACE_S = 30.0  # time for a training to end its step and write a resume point


@dataclass(frozen=True)
class Cell:
    """A job of a comparison.

    Attributes:
        name: folder, relative to the comparison's.
        kind: training | evaluation | timing.
        settings: everything that the outcome depends on, as plain data.
        needs: name of the cell that must be done first; empty: none.
        unkeyed: options for the worker that don't affect the outcome.
    """

    name: str
    kind: str
    settings: dict[str, Any]
    needs: str = ""
    unkeyed: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Hash of kind and settings, 16 hex digits; the settings of other cells refer to it."""
        return digest(json.dumps([self.kind, self.settings], sort_keys=True), 16)

    def job(self, folder: Path) -> Job:
        """Return the job, given the comparison's folder."""
        identity = {"command": self.kind, **self.settings}
        beside = {"needs": self.needs, "unkeyed": self.unkeyed}
        return Job(folder / self.name / JOURNAL, identity, beside=beside)

    def plan(self, folder: Path) -> None:
        """Write the journal for a worker, replacing that of an earlier attempt."""
        path = folder / self.name / JOURNAL
        if Journal(path).identity and not self.state(folder).identity:
            path.unlink()  # of other settings, which the plan has settled; a timing's change with each model
        self.job(folder).begin()
        (folder / self.name / STATE).unlink(missing_ok=True)

    def state(self, folder: Path) -> Journal:
        """Return the journal; an empty one if the cell on disk has other settings."""
        state = read_state(folder, self.name)
        return state if stored_cell(self.name, state).key == self.key else Journal()

    def is_done(self, folder: Path) -> bool:
        """Return whether the cell succeeded with exactly these settings."""
        return self.state(folder).status == "done"


def read_state(folder: Path, name: str) -> Journal:
    """Return the journal of a cell, whatever its settings; an empty one if the cell wasn't planned."""
    path = folder / name / JOURNAL
    journal = Journal(path)
    if not path.exists() and (earlier := path.with_name(STATE)).exists():
        stored = read_record(earlier, "the state of a cell")
        journal.identity = {"command": name.partition("s/")[0], **stored["settings"]}
        if stored["status"] == "running":
            journal.stored = {BEGUN: None}
        elif stored["status"] != "missing":
            journal.record = {name: x for name in ("error", "seconds", "result") if (x := stored[name])}
    return journal


def stored_cell(name: str, state: Journal) -> Cell:
    """Return the cell that a journal describes."""
    settings = dict(state.identity)
    return Cell(name, settings.pop("command", ""), settings, **state.beside)


@dataclass(frozen=True)
class TrainingResult:
    """Location of a training.

    Attributes:
        run: run folder, relative to the comparison's.
        reused: whether the run existed before the comparison.
    """

    run: str
    reused: bool = False


def training_result(state: Journal) -> TrainingResult | None:
    """Return the location of a training; None if it isn't done."""
    return state.result(TrainingResult) if state.status == "done" else None


def trained_run(folder: Path, name: str) -> Path:
    """Return the run folder of a finished training."""
    return folder / read_state(folder, name).result(TrainingResult).run


def code_entry(*attentions: str) -> dict[str, Any]:
    """Return an entry of a cell's settings: digests of the files of the user's mechanisms."""
    code = code_digests(*attentions)
    return {"code": code} if code else {}


def as_stored(folder: Path, cell: Cell, defaults: Mapping[str, Any]) -> Cell:
    """Return a cell with its settings on disk, if they mean the same.

    They do if they differ only in options that the program has lost since, or gained with the values that it
    used before: these don't affect results, like any change of the program that keeps a key. Keys don't
    simply omit defaults, because a default that changes later has to change them.

    Args:
        folder: folder of the comparison.
        cell: cell with the options of this version.
        defaults: values to assume for options that stored settings lack, by dotted name.
    """
    before = stored_cell(cell.name, read_state(folder, cell.name)).settings
    old, new = flat(before), flat(cell.settings)

    def same(name: str) -> bool:
        if name in old and name in new:
            return bool(old[name] == new[name])
        option = name.removeprefix("options.")
        return option != name and (name in old or (option in defaults and defaults[option] == new[name]))

    return replace(cell, settings=before) if before and all(map(same, old | new)) else cell


def log_path(folder: Path, name: str) -> Path:
    """Return the log of a cell; all evaluations of a model share one."""
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
