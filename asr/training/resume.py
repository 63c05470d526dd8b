"""Resuming: finds the checkpoint, compares options and inputs with the run's, tells whether it has ended."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr import config
from asr.config import affecting, flat, values_affecting
from asr.data.stream import TrainingData
from asr.errors import UserError
from asr.files import file_digest
from asr.model import checkpoint
from asr.model.portable import WEIGHTS, portable_folder
from asr.model.pretrained_folder import pretrained_files
from asr.records.job import Job, differences
from asr.records.run_folder import LAST, RunEnvironment, RunFolder
from asr.training.config import run_options, warn_of_lost
from asr.training.options import TrainConfig
from asr.training.plan import TrainingPlan

if TYPE_CHECKING:  # loads Lightning
    from asr.training.cost import Cost
    from asr.training.task import TrainingTask

log = logging.getLogger(__name__)

# Entries of environment.json that must not change when a run resumes.
# The program isn't among them: a commit must not invalidate a training.
INPUTS = ("code", "data", "label_ngram", "lexicon", "tokenizer", "start")
# Entries of a resume point; a checkpoint of weights alone lacks them.
STATE = ("global_step", "optimizer_states", "lr_schedulers", "loops", "callbacks", "counts", "dev_error")


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint to resume from.

    Attributes:
        path: path of the checkpoint.
        state: content of the checkpoint.
        environment: content of environment.json, written when the run started.
    """

    path: Path
    state: dict[str, Any]
    environment: RunEnvironment

    @property
    def step(self) -> int:
        """Number of optimiser steps taken."""
        return int(self.state["global_step"])


def find_resume_point(options: TrainConfig, folder: Path) -> ResumePoint | None:
    """Return the last resume point, or the previous one if the last is damaged; None if there is none.

    Raises:
        UserError: the folder contains a run although resume=no; options differ from the run's; the checkpoint
            belongs to another run; or no resume point can be read.
    """
    run = RunFolder(folder)
    paths = [path for path in (run.last, run.previous) if path.exists()]
    used = bool(run.saved())
    if used and options.resume == "no":
        raise UserError(
            f"{folder} already contains a run: continue it with resume=auto, or choose another folder "
            "with run=<folder>"
        )
    if not used and run.options.exists() and "trainer" not in run.read_options():
        raise UserError(
            f"{run.options}: expected no file, or the options of a run, found another: choose another folder "
            "with run=<folder>"
        )
    if not paths:
        if used and run.summary.exists():
            raise UserError(f"{run.last}: expected the resume point of a finished run, found no file")
        if options.resume == "auto" and run.begun():
            log.warning("%s: no checkpoint to resume from: training begins again", folder)
        return None
    _check_options(options, run)
    environment = run.read_environment("the inputs of the run to resume")
    failures = []
    for path in paths:
        try:
            state = checkpoint.load(path)
        except UserError as error:
            failures.append(error.line)
            continue
        # Otherwise results of another run's weights would be reported as this run's.
        if state.get("run") != environment.run:
            raise UserError(f"{path}: expected a checkpoint of the run in {folder}, found another run's")
        if missing := [name for name in STATE if name not in state]:
            raise UserError(f"{path}: expected a resume point, found a checkpoint without {missing[0]}")
        for line in failures:
            log.warning("%s; resuming from %s, step %s", line, path.name, state["global_step"])
        return ResumePoint(path, state, environment)
    raise UserError(f"{folder}: no resume point can be read: {'; '.join(failures)}")


def _check_options(options: TrainConfig, run: RunFolder) -> None:
    """Raise UserError if options differ from those at the run's start; warn of those that are gone."""
    try:
        before = flat(config.to_dict(run_options(run)))
    except FileNotFoundError:
        raise UserError(f"{run.options}: expected the options of the run to resume, found no file") from None
    warn_of_lost(options, run.read_options(), str(run.options))
    now = flat(config.to_dict(options))
    for values in (before, now):
        values["init_from"] = values["init_from"] and str(Path(values["init_from"]).resolve())
    fixed = affecting(options, "result")
    changed = [
        f"{key}={is_now} (was {was})"
        for key, (was, is_now) in sorted(differences(before, now).items())
        if key in fixed or key not in now
    ]
    if changed:
        raise UserError(f"{run.path}: these options can't change when a run resumes: {', '.join(changed)}")


def replanned(options: TrainConfig, point: ResumePoint) -> bool:
    """Return whether the plan changes now, or changed at an earlier resumption."""
    run = RunFolder(point.path.parent.parent)
    before, now = (flat(config.to_dict(values)) for values in (run_options(run), options))
    changed = any(before[key] != now[key] for key in affecting(options, "plan"))
    return changed or point.environment.replanned


def identity(options: TrainConfig, environment: dict[str, Any]) -> str:
    """Return the key of a run: a hash of its initial options and inputs."""
    inputs = {key: environment.get(key) for key in INPUTS}
    same = {"command": "train", "options": values_affecting(options, "result", "plan"), **inputs}
    return Job(None, same).key


def start_digest(options: TrainConfig, point: ResumePoint | None = None) -> str:
    """Return the digest of the initial weights; empty if they are random.

    When a run resumes, the file may have been deleted: then the stored digest is returned.

    Raises:
        UserError: no such run, checkpoint or folder.
    """
    try:
        if options.init_from:
            exported = portable_folder(Path(options.init_from))
            return file_digest(exported / WEIGHTS if exported else checkpoint.find(Path(options.init_from)))
        files = pretrained_files(options.model.encoder) if options.model.encoder else []
        return " ".join(file_digest(path) for path in files)
    except (OSError, UserError):
        if point is None:
            raise
        return point.environment.start


def check_inputs(point: ResumePoint, environment: dict[str, Any]) -> None:
    """Raise UserError with the inputs that have changed since the run began, if any."""
    before = {key: getattr(point.environment, key) for key in INPUTS}
    now = {key: environment.get(key) for key in INPUTS}
    changed = [
        f"{key} {is_now} (was {was})" for key, (was, is_now) in sorted(differences(before, now).items())
    ]
    if changed:
        raise UserError(
            f"{point.path.parent.parent}: inputs have changed since the run began: {', '.join(changed)}"
        )


def check_model(point: ResumePoint, task: "TrainingTask") -> None:
    """Raise UserError unless the checkpoint's weights fit the model."""
    checkpoint.check_shapes(task.model_state()["weights"], point.state["model"]["weights"], str(point.path))


def carry_on(point: ResumePoint, options: TrainConfig, data: TrainingData) -> None:
    """Set the cursor of the data, and adapt the checkpoint's counts of batches per rank to the options.

    The counts depend on trainer.accumulate, which may have changed. A resume point is at the start of a step.
    """
    from asr.training.data_module import DataModule

    cursor = point.state[DataModule.__qualname__]
    progress = point.state["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    more = point.step * options.trainer.accumulate - cursor["batches"]
    cursor["batches"] += more
    data.load_state_dict(cursor)
    for counts in (progress["total"], progress["current"]):
        counts |= {name: count + more for name, count in counts.items() if type(count) is int}


def finished(point: ResumePoint, plan: TrainingPlan, cost: "Cost") -> bool:
    """Return whether a checkpoint is at the end of the plan, which may have become longer."""
    if point.step >= plan.steps or point.state.get("stopped") == plan.stopping_rules:
        return True
    return plan.budget is not None and cost.spent >= 1


def raised_rate(point: ResumePoint, plan: TrainingPlan, cost: "Cost") -> list[str]:
    """Return a line if the learning rate rises because the plan has become longer; otherwise nothing."""
    from asr.training.optimizer import rate_factor

    options = plan.options.optimizer
    if options.schedule != "cosine":
        return []
    factor = rate_factor(point.step, plan.steps, options, cost.spent if plan.budget else None)
    before, now = point.state["lr_schedulers"][0]["_last_lr"][0], options.learning_rate * factor
    if now <= 1.001 * before:
        return []
    return [
        f"the learning rate rises again, from {before:.3g} to {now:.3g}: optimizer.schedule=cosine now falls "
        f"over {plan.length}"
    ]


def clear_partial(folder: Path) -> None:
    """Remove the temporary files of checkpoints whose writers were killed."""
    for path in RunFolder(folder).checkpoints.glob("*.partial"):
        path.unlink()


def clear(folder: Path, point: ResumePoint | None) -> None:
    """Remove files that the new training replaces, and temporary files of killed writers."""
    run = RunFolder(folder)
    clear_partial(folder)
    # The average belongs to the shorter training; the longer one may not write one.
    run.average.unlink(missing_ok=True)
    if point is None:
        # A run killed before its first resume point may have left a best checkpoint with other options.
        for path in run.saved():
            path.unlink()
    elif point.path == run.previous:
        with checkpoint.also_named(point.path, LAST):  # other ranks may yet read previous.ckpt
            pass
    run.summary.unlink(missing_ok=True)
