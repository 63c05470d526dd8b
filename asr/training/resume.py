"""Resuming: find the checkpoint, compare options and inputs with the run's, tell whether it is finished."""

import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from asr import config
from asr.config import affecting, flat
from asr.data.stream import NumberedBatches, TrainingData
from asr.errors import UserError
from asr.files import digest, file_digest, type_name
from asr.model import checkpoint
from asr.model.portable import WEIGHTS, portable_folder
from asr.model.pretrained_folder import pretrained_files
from asr.records.keyed import differences
from asr.records.run_folder import LAST, RunEnvironment, RunFolder
from asr.training.config import run_options
from asr.training.options import TrainConfig
from asr.training.plan import TrainingPlan

if TYPE_CHECKING:  # loads Lightning
    from torch.optim import Optimizer

    from asr.training.cost import Cost
    from asr.training.task import TrainingTask

log = logging.getLogger(__name__)

STEPS = "epoch_loop.automatic_optimization.optim_progress"
MOST_RANKS = 1 << 16  # a position is beyond the end of its epoch by less than the number of ranks
LARGEST = torch.finfo(torch.float32).max
# Entries of environment.json that must not change when a run resumes.
# The program is not among them: a commit must not throw a training away.
INPUTS = ("code", "data", "label_ngram", "lexicon", "tokenizer", "start")
# Entries of a checkpoint that weights alone lack.
STATE = ("global_step", "optimizer_states", "lr_schedulers", "loops", "callbacks", "counts", "dev_error")


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint to resume from.

    Attributes:
        path: path of the checkpoint.
        state: content of the checkpoint.
        environment: environment of the run at its start.
    """

    path: Path
    state: dict[str, Any]
    environment: RunEnvironment

    @property
    def step(self) -> int:
        """Number of optimiser steps taken."""
        return int(self.state["global_step"])


def find_resume_point(options: TrainConfig, folder: Path) -> ResumePoint | None:
    """Return the last resume point, or the one before if the last is damaged; None without any.

    Raises:
        UserError: the folder contains a run although resume=no, options differ from the run's, the checkpoint
            is from another run, or no resume point can be read.
    """
    run = RunFolder(folder)
    paths = [path for path in (run.last, run.previous) if path.exists()]
    used = bool(run.saved())
    if used and options.resume == "no":
        raise UserError(
            f"{folder} already contains a run: continue it with resume=auto, or choose another folder "
            "with run=<folder>"
        )
    if not paths:
        if used and run.summary.exists():
            raise UserError(f"{run.last}: expected the resume point of a finished run, found no file")
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
        # Another run's weights would be decoded, and the result reported, as if they were this run's.
        if state.get("run") != environment.run:
            raise UserError(f"{path}: expected a checkpoint of the run in {folder}, found another run's")
        if missing := [name for name in STATE if name not in state]:
            raise UserError(f"{path}: expected a resume point, found a checkpoint without {missing[0]}")
        for line in failures:
            log.warning("%s; resuming from %s, step %s", line, path.name, state["global_step"])
        return ResumePoint(path, state, environment)
    raise UserError(f"{folder}: no resume point can be read: {'; '.join(failures)}")


def _check_options(options: TrainConfig, run: RunFolder) -> None:
    """Raise UserError if options differ from those that the run was started with."""
    try:
        before = flat(config.to_dict(run_options(run)))
    except FileNotFoundError:
        raise UserError(f"{run.options}: expected the options of the run to resume, found no file") from None
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
    """Return whether the run had another plan before it resumes, now or at an earlier resumption."""
    run = RunFolder(point.path.parent.parent)
    before, now = (flat(config.to_dict(values)) for values in (run_options(run), options))
    changed = any(before[key] != now[key] for key in affecting(options, "plan"))
    return changed or point.environment.replanned


def identity(options: TrainConfig, environment: dict[str, Any]) -> str:
    """Return 16 hex digits that identify a run: a hash of its options and inputs at its start."""
    kept = affecting(options, "result", "plan")
    settings = {key: x for key, x in flat(config.to_dict(options)).items() if key in kept}
    text = json.dumps([settings, {key: environment.get(key) for key in INPUTS}], sort_keys=True)
    return digest(text, 16)


def start_digest(options: TrainConfig, point: ResumePoint | None = None) -> str:
    """Return the digest of the initial weights; empty if they are random.

    Their file may be missing when a run resumes.

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


def check_state(point: ResumePoint, task: "TrainingTask", data: TrainingData, cost: "Cost") -> None:
    """Raise UserError unless the state of training has the types that are written, and is of one step."""
    from lightning.pytorch.loops.progress import _BatchProgress

    from asr.training.data_module import DataModule

    taken = {"optimizer": {"step": {"total": {"completed": 0}}}}
    written = {
        "global_step": 0,
        "counts": task.counts,
        "dev_error": task.dev_error,
        "callbacks": {cost.state_key: cost.state_dict()},
        "loops": {"fit_loop": {"epoch_loop.batch_progress": _BatchProgress().state_dict(), STEPS: taken}},
        "lr_schedulers": [{"last_epoch": 0}],
        DataModule.__qualname__: data.state_dict(),
    }
    _check_like(written, point.state, str(point.path))
    configured = task.configure_optimizers()
    schedule = configured["lr_scheduler"]["scheduler"]
    _check_steps(point, schedule)
    _check_cursor(point, data)
    states = point.state["optimizer_states"]
    if not isinstance(states, list) or len(states) != 1:
        raise UserError(f"{point.path}: expected the state of an optimiser, found {str(states)[:60]!r}")
    _check_optimizer(states[0], configured["optimizer"], point.step, str(point.path))


def _check_steps(point: ResumePoint, schedule: Any) -> None:
    """Raise UserError unless all counts of steps agree, and the schedule's rates are the options'."""
    taken = point.state["loops"]["fit_loop"][STEPS]["optimizer"]["step"]["total"]["completed"]
    if taken != point.step:
        raise UserError(f"{point.path}: expected {point.step} steps taken, as in global_step, found {taken}")
    if not isinstance(schedule, LambdaLR):  # which counts validations
        return
    (found,) = point.state["lr_schedulers"]
    if found["last_epoch"] != point.step:
        raise UserError(
            f"{point.path}: lr_schedulers: expected step {point.step}, found {found['last_epoch']}"
        )
    if (rates := found.get("base_lrs")) != schedule.base_lrs:
        raise UserError(
            f"{point.path}: lr_schedulers: expected the rates {schedule.base_lrs}, found {str(rates)[:60]}"
        )
    _check_like({"_last_lr": schedule.get_last_lr()}, found, f"{point.path}: lr_schedulers")


def _check_cursor(point: ResumePoint, data: TrainingData) -> None:
    """Raise UserError if the next batch is in no epoch near; each one on the way would be planned."""
    from asr.training.data_module import DataModule

    cursor = point.state[DataModule.__qualname__]
    if isinstance(data, NumberedBatches):
        return
    if cursor["position"] > (most := data.epoch_batches(cursor["epoch"]) + MOST_RANKS):
        raise UserError(
            f"{point.path}: expected a position of at most {most} in epoch {cursor['epoch']}, "
            f"found {cursor['position']}"
        )


def _check_optimizer(found: Any, optimizer: "Optimizer", steps: int, where: str) -> None:
    """Raise UserError unless a state fits an optimiser; its compiled steps read beyond smaller tensors.

    Args:
        found: state of the optimiser.
        optimizer: optimiser as configured, which no step has changed.
        steps: number of steps taken.
        where: place for messages.
    """
    where = f"{where}: optimizer_states"
    groups = optimizer.state_dict()["param_groups"]
    _check_like({"state": {}, "param_groups": groups}, found, where)
    order, wanted = ([group["params"] for group in x] for x in (found["param_groups"], groups))
    if order != wanted:
        raise UserError(f"{where}: expected the parameters {wanted}, found {order}"[:200])
    for own, group in zip(groups, found["param_groups"], strict=True):
        for name in own.keys() - {"lr"}:  # which the schedule sets; the options of a run can't change
            wanted, value = own[name], group[name]
            same = tuple(value) == wanted if isinstance(wanted, tuple) else value == wanted
            if isinstance(wanted, float | tuple) and not same:
                raise UserError(f"{where}: {name}: expected {wanted}, found {value}")
    number = 0
    for group in optimizer.param_groups:
        names: set[str] = set()
        for parameter in group["params"]:
            _check_moments(found["state"].get(number, {}), parameter, names, steps, f"{where}: {number}")
            number += 1


def _check_moments(state: Any, parameter: Tensor, names: set[str], steps: int, where: str) -> None:
    """Raise UserError unless a state is empty, or finite tensors like the parameter and a number of steps.

    Args:
        state: state of one parameter; empty if no step has changed it.
        parameter: the parameter.
        names: names in the states of the group's other parameters; empty at first.
        steps: largest number of steps.
        where: place for messages.
    """
    if not isinstance(state, dict) or (state and names and state.keys() != names):
        wanted = ", ".join(sorted(names)) or "tensors by name"
        raise UserError(f"{where}: expected {wanted}, found {str(state)[:60]!r}")
    names.update(state)
    for name, value in state.items():
        shape = torch.Size() if name == "step" else parameter.shape
        if not isinstance(value, Tensor) or value.shape != shape or value.is_complex():
            found = str(value)[:60]
            raise UserError(f"{where}: {name}: expected numbers of shape {list(shape)}, found {found!r}")
        low, high = {"step": (0.0, steps), "exp_avg_sq": (0.0, LARGEST)}.get(name, (-LARGEST, LARGEST))
        if not bool(((value >= low) & (value <= high)).all()):
            raise UserError(f"{where}: {name}: expected numbers of {low:g} … {high:g}, found others")


def _check_like(written: Any, found: Any, where: str) -> None:
    """Raise UserError unless plain data have the keys and types of others, and numbers are no less than 0."""
    if isinstance(written, dict) and isinstance(found, dict):
        for key, value in written.items():
            if key not in found:
                raise UserError(f"{where}: expected {key}, found none")
            _check_like(value, found[key], f"{where}: {key}")
        return
    if isinstance(written, list | tuple) and isinstance(found, list | tuple) and len(written) == len(found):
        for number, (value, other) in enumerate(zip(written, found, strict=True)):
            _check_like(value, other, f"{where}: {number}")
        return
    if written is None or (found is None and isinstance(written, bool)):  # left to PyTorch, as `foreach`
        return
    kinds = (int, float) if isinstance(written, float) else (type(written),)
    # An error rate is NaN before the first validation.
    sized = isinstance(written, dict | list | tuple)
    if sized or type(found) not in kinds or not (written != written or 0 <= found < math.inf):
        raise UserError(f"{where}: expected {type_name(type(written))}, found {str(found)[:60]!r}")


def carry_on(point: ResumePoint, options: TrainConfig, data: TrainingData) -> None:
    """Set the cursor of the data, and the checkpoint's counts of batches per rank to those of the options.

    They depend on trainer.accumulate, which may have changed. A resume point is at the start of a step.
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
    """Return whether a checkpoint ends this plan, which may be longer than when it was written."""
    if point.step >= plan.steps or point.state.get("stopped") == plan.stopping_rules:
        return True
    return plan.budget is not None and cost.spent >= 1


def raised_rate(point: ResumePoint, plan: TrainingPlan, cost: "Cost") -> list[str]:
    """Return a line if the learning rate rises because the plan is longer than when it fell; else none."""
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
    """Remove what the training that begins replaces, and the temporary files of killed writers."""
    run = RunFolder(folder)
    clear_partial(folder)
    # The average belongs to the shorter training, and the longer one may not make its own.
    run.average.unlink(missing_ok=True)
    if point is None:
        # A run killed before its first resume point may have left a best checkpoint with other options.
        for path in run.saved():
            path.unlink()
    elif point.path == run.previous:
        with checkpoint.also_named(point.path, LAST):  # other ranks may yet read previous.ckpt
            pass
    run.summary.unlink(missing_ok=True)
