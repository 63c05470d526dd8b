"""Collects the outcomes of all cells of a comparison as one record."""

import os
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from asr.attention.table import missing_kernels
from asr.config import as_overrides, flat, to_dict, user_code
from asr.console import counted
from asr.environment import describe_environment, pick_device
from asr.experiment.cell import Cell, log_path, training_result
from asr.experiment.differences import differences
from asr.experiment.options import STEPS, TIMING_THREADS
from asr.experiment.plan import Plan, timing_cells
from asr.experiment.records import (
    Candidate,
    Conditions,
    CurvePoint,
    Evaluation,
    Failure,
    ForwardTimes,
    ItemErrors,
    TimingResult,
    Training,
)
from asr.experiment.request import PER_CANDIDATE
from asr.experiment.results import Results
from asr.experiment.variant import Variant
from asr.records.metrics import read_metrics
from asr.records.run_folder import RunFolder
from asr.report.words import clock_words, hardware_words

# Entries of training.json in the record of a training.
MEASURED = (
    *("parameters", "steps", "skipped_batches", "epochs", "frames"),
    *("train_s", "train_cpu_s", "seconds_per_epoch", "peak_memory_mib", "peak_gpu_memory_mib"),
)


def collect(plan: Plan) -> Results:
    """Return the results of all cells, finished or not."""
    candidates = {candidate.label: candidate for candidate in plan.candidates}
    times, conditions = _timings(plan)
    evaluations = [
        _evaluation(plan, *key, cell, times.get((cell.needs, *key[2:])))
        for key, cell in plan.evaluations.items()
    ]
    results = Results(
        command=["asr", "compare", *plan.request.command],
        recipe=plan.protocol.recipe.name,
        protocol=_protocol(plan),
        environment={key: x for key, x in describe_environment().items() if key != "command"},
        data=plan.workload.data,
        candidates=plan.candidates,
        trainings=[
            _training(plan, candidates[label], seed, cell) for (label, seed), cell in plan.trainings.items()
        ],
        evaluations=evaluations,
        failures=_failures(plan),
        conditions=conditions,
        tried=plan.request.tried,
    )
    cells = zip(evaluations, plan.evaluations.values(), strict=True)
    measured = [(x, cell.state(plan.folder).result(ItemErrors)) for x, cell in cells if x.status == "done"]
    return replace(results, differences=differences(results, measured))


def kernels_notice(plan: Plan) -> str:
    """Return a sentence about the mechanisms that lack compiled kernels; empty if none does."""
    names = [x.attention for x in plan.candidates]
    names += [Variant.read(variant).attention for *_, variant in plan.evaluations]
    return missing_kernels(names, pick_device(plan.options.device))


def _protocol(plan: Plan) -> dict[str, Any]:
    options, trainer = plan.options, plan.protocol.trainer
    clock = "cpu" if options.budget_clock == STEPS else options.budget_clock
    if options.budget:
        measured = ", by the cost of a step" if options.budget_clock == STEPS else ""
        budget = f"{', '.join(options.budget)} of training ({clock_words(clock)}{measured})"
    elif trainer.budget:  # the recipe's
        clock = trainer.budget_clock
        budget = f"{trainer.budget} of training ({clock_words(clock)})"
    else:
        steps = trainer.max_steps
        budget = counted(steps, "step") if steps else counted(trainer.max_epochs, "epoch")
    training = flat(to_dict(plan.protocol))
    return {
        "training": {key: value for key, value in training.items() if key not in PER_CANDIDATE},
        "budget": budget,
        "clock": clock,
        "seeds": options.seeds,
        "evaluate": options.evaluate,
        "splits": list(dict.fromkeys(split for _, _, split, _ in plan.evaluations)),
        "metric": options.metric,
        **plan.decoding.described(),
        "timing_repeats": options.timing_repeats,
        "timing_threads": TIMING_THREADS,
        "device": options.device,
        **({"kernels": notice} if (notice := kernels_notice(plan)) else {}),
        "threads": plan.protocol.trainer.threads,
    }


def _training(plan: Plan, candidate: Candidate, seed: int, cell: Cell) -> Training:
    status, error = _status(plan, cell)
    trained = training_result(cell.state(plan.folder))
    run = plan.run_folder(candidate.label, seed)
    of_cell = {"attention": candidate.attention, "seed": seed, **candidate.overrides}
    arguments = ["asr", "train", *as_overrides(plan.request.shared | of_cell)]
    if candidate.finetuned_from:
        parent = next((key for key, x in plan.trainings.items() if x.name == cell.needs), None)
        # The parent's run, so that the command can be repeated: asr train knows no labels.
        arguments += [f"init_from={plan.run_folder(*parent) if parent else candidate.finetuned_from}"]
    arguments += user_code.options(cell.settings.get("code", {}))
    training = Training(
        candidate=candidate.label,
        seed=seed,
        run=os.path.relpath(run, plan.folder),
        status=status,
        error=error,
        reused=bool(trained and trained.reused),
        command=shlex.join(arguments),
    )
    if status == "done":
        enter_run(training, run)
    return training


def enter_run(training: Training, folder: Path) -> None:
    """Enter the measurements of a finished run into its training."""
    run = RunFolder(folder)
    summary, about = run.read_summary(), run.read_environment()
    training.backend, training.commit = about.backend, about.commit
    training.hardware = hardware_words(asdict(about))
    for name in MEASURED:
        setattr(training, name, getattr(summary, name))
    training.dev_error_name, rows = read_metrics(run.metrics)
    training.curve = CurvePoint.all_of(rows, summary.epochs / max(summary.steps, 1))
    if training.curve:
        best = min(training.curve, key=lambda point: (point.dev_error, point.dev_loss))
        training.dev_error, training.best_step = best.dev_error, best.step
        training.time_to_best_s, training.time_to_best_cpu_s = best.train_s, best.train_cpu_s


def _evaluation(
    plan: Plan, label: str, seed: int, split: str, variant: str, cell: Cell, times: ForwardTimes | None
) -> Evaluation:
    status, error = _status(plan, cell)
    command, options = plan.workload.command(split)
    run = str(plan.run_folder(label, seed))
    arguments = ["asr", command, run, f"split={split}", *Variant.read(variant).overrides(), *options]
    arguments += user_code.options(
        cell.settings.get("code", {}) | plan.trainings[label, seed].settings.get("code", {})
    )
    evaluation = Evaluation(
        candidate=label,
        seed=seed,
        split=split,
        variant=variant,
        decoder=plan.decoding.options.decoder,
        folder=cell.name,
        status=status,
        error=error,
        command=shlex.join(arguments),
    )
    if status != "done":
        return evaluation
    plan.workload.complete(evaluation, plan.folder, cell)
    for name, value in vars(times).items() if times else ():
        if name != "error":
            setattr(evaluation, name, value)
    return evaluation


def _timings(plan: Plan) -> tuple[dict[tuple[str, str, str], ForwardTimes], dict[str, Conditions]]:
    """Return the times by training cell, split and variant, and the conditions of timing by split."""
    times, conditions = {}, {}
    for cell in timing_cells(plan):
        if timing := _timing(plan.folder, cell):
            split = cell.name.removeprefix("timings/")
            conditions[split] = timing.conditions
            for model, taken in zip(cell.settings["models"], timing.times, strict=True):
                times[model["training"], split, model["variant"]] = taken
    return times, conditions


def _timing(folder: Path, cell: Cell) -> TimingResult | None:
    """Return the result of a timing cell; None if it isn't done."""
    state = cell.state(folder)
    return state.result(TimingResult) if state.status == "done" else None


def _status(plan: Plan, cell: Cell) -> tuple[str, str | None]:
    """Return done, failed or missing, with the reason; a cell whose prerequisite failed is missing."""
    state = cell.state(plan.folder)
    if state.status in ("done", "failed"):
        return state.status, state.error
    if not cell.needs:
        return "missing", None
    status, error = _status(plan, next(x for x in plan.trainings.values() if x.name == cell.needs))
    return "missing", f"{cell.needs} failed" if status == "failed" else error


def _failures(plan: Plan) -> list[Failure]:
    failures = []
    owners = {cell.name: key[:2] for key, cell in plan.evaluations.items()}
    owners |= {cell.name: key for key, cell in plan.trainings.items()}
    for cell in [*plan.cells(), *timing_cells(plan)]:
        state = cell.state(plan.folder)
        label, seed = owners.get(cell.name, ("all candidates", None))
        log = str(log_path(Path(), cell.name))
        if state.status == "failed":
            failures.append(Failure(cell.name, label, seed, state.error or "", log))
        if cell.kind == "timing" and (timing := _timing(plan.folder, cell)):
            for model, taken in zip(cell.settings["models"], timing.times, strict=True):
                if taken.error:
                    name = f"{cell.name}: {model['variant']}"
                    failures.append(Failure(name, model["label"], None, taken.error, log))
    return failures
