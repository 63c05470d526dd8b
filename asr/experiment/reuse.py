"""Finished runs that a comparison uses instead of training again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.config import affecting, flat, to_dict
from asr.errors import UserError
from asr.model import checkpoint
from asr.records.run_folder import RunFolder
from asr.training.config import run_options
from asr.training.options import TrainConfig


@dataclass(frozen=True)
class FinishedRun:
    """What a finished training depended on.

    Attributes:
        folder: run folder.
        options: options by dotted name.
        data: digests of the training manifests and of the development manifest.
        lexicon: digest of the lexicon; empty without one.
        code: digests of the files of mechanisms from outside the program.
        start: digest of the initial weights; empty if they were random.
        replanned: whether a part of the run had another plan; see `RunEnvironment`.
        whole: whether the training took all the steps of its plan.
    """

    folder: Path
    options: dict[str, Any]
    data: list[str]
    lexicon: str
    code: dict[str, str]
    start: str
    replanned: bool
    whole: bool

    def suits(self, settings: dict[str, Any]) -> bool:
        """Return whether the run has the settings of a cell, and checkpoints of its own."""
        wanted = settings["options"]
        if self.start != settings["start"] or self.replanned:
            return False
        free = affecting(TrainConfig, "place")  # cost-only options count: a comparison measures cost
        if any(wanted.get(key) != x for key, x in self.options.items() if key not in free):
            return False
        may_stop = wanted["trainer.early_stopping"] or wanted["trainer.stop_at"] is not None
        if not (self.whole or may_stop or wanted["optimizer.minimum_rate"] or wanted["trainer.budget"]):
            return False
        if settings.get("code", {}) != self.code:
            return False
        data = dict(settings["data"])
        same = data.pop("lexicon") == self.lexicon and list(data.values()) == self.data
        return same and checkpoint.foreign(self.folder) is None


def read_run(folder: Path) -> FinishedRun | None:
    """Return the finished training in a folder; None if there is none, or one of another version."""
    try:
        run = RunFolder(folder)
        summary, environment = run.read_summary(), run.read_environment()
        return FinishedRun(
            folder,
            options=flat(to_dict(run_options(run))),
            data=list(environment.data.values()),
            lexicon=environment.lexicon or "",
            code=environment.code,
            start=environment.start,
            replanned=environment.replanned,
            whole=summary.steps == summary.planned_steps,
        )
    except (UserError, OSError):  # perhaps another program's files, which may hold anything
        return None


def finished_runs(place: Path) -> list[FinishedRun]:
    """Return the finished trainings in a folder, at any depth."""
    runs = (read_run(run.path) for run in RunFolder.finished(place))
    return [run for run in runs if run]
