"""Finished runs that a comparison uses instead of training again."""

from pathlib import Path
from typing import Any

from asr.config import affecting, flat, to_dict
from asr.errors import UserError
from asr.model import checkpoint
from asr.records.run_folder import RunFolder
from asr.training.config import run_options


def suits(folder: Path, work: dict[str, Any] | None, settings: dict[str, Any]) -> bool:
    """Return whether a run has the settings of a cell, and its checkpoints are its own.

    Args:
        folder: run folder.
        work: result of `read_run` for the folder.
        settings: settings of the cell.
    """
    data = dict(settings["data"])
    wanted = {"code": {}, **settings, "lexicon": data.pop("lexicon"), "data": list(data.values())}
    return work == wanted and checkpoint.foreign(folder) is None


def read_run(folder: Path) -> dict[str, Any] | None:
    """Return all that the finished training in a folder depended on, for `suits`.

    Return None if there is none, another version wrote it, or it had another plan for a part of its steps.
    """
    try:
        run = RunFolder(folder)
        summary, environment, options = run.read_summary(), run.read_environment(), run_options(run)
    except (UserError, OSError):  # may be another program's files
        return None
    trainer = options.trainer
    may_stop = trainer.early_stopping or trainer.stop_at is not None or trainer.budget
    whole = summary.steps == summary.planned_steps or may_stop or options.optimizer.minimum_rate
    if environment.replanned or not whole:
        return None
    free = affecting(options, "place")  # cost-only options count: a comparison measures cost
    return {
        "options": {key: x for key, x in flat(to_dict(options)).items() if key not in free},
        "data": list(environment.data.values()),  # a manifest has other names in a comparison
        "lexicon": environment.lexicon or "",
        "code": environment.code,
        "start": environment.start,
    }


def finished_runs(place: Path) -> list[tuple[Path, dict[str, Any] | None]]:
    """Return the finished trainings in a folder, at any depth, with the results of `read_run`."""
    return [(run.path, read_run(run.path)) for run in RunFolder.finished(place)]
