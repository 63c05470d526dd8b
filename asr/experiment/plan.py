"""The plan of a comparison: cells for training, evaluation and timing, and finished runs to reuse."""

import functools
import itertools
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asr.config import affecting, flat, from_dict, refuse, to_dict
from asr.config.schedule import check_schedule
from asr.errors import UserError
from asr.experiment.candidates import evaluated_with, plan_candidates
from asr.experiment.cell import (
    JOURNAL,
    STATE,
    Cell,
    as_stored,
    code_entry,
    read_state,
    stored_cell,
    training_result,
)
from asr.experiment.options import LENGTHS, ORACLE, OWN, STEPS, TIMING_THREADS, CompareConfig
from asr.experiment.records import Candidate
from asr.experiment.request import Decoding, Request, plan_decoding
from asr.experiment.reuse import finished_runs, read_run, suits
from asr.experiment.speech import Speech
from asr.experiment.variant import Variant
from asr.model import checkpoint
from asr.records.job import Journal, differences
from asr.records.run_folder import RunFolder
from asr.search.options import DecodeOptions, SearchOptions
from asr.training.budget import parse_budget
from asr.training.config import train_options
from asr.training.options import TrainConfig, recipe_task, train_schema
from asr.training.resume import start_digest
from asr.training.sizes import settled

if TYPE_CHECKING:
    from asr.experiment.labels import Labels

SEARCH = dict.fromkeys(key.partition(".")[0] for key in affecting(SearchOptions, "result"))
NEEDS_SPEECH = ("metric", *SEARCH)
RATES = "learning_rates"  # folder, in the comparison's, of the trainings that try learning rates


@dataclass(frozen=True)
class Plan:
    """A comparison before it runs.

    Attributes:
        request: options and shared overrides.
        folder: output folder.
        protocol: training options that all candidates share.
        candidates: candidates; parents come before the models finetuned from them.
        workload: workload on which the models are evaluated.
        decoding: search options for all evaluations.
        trainings: cells by candidate and seed.
        evaluations: cells by candidate, seed, split and variant.
        reused: finished run folders to use instead of training, by cell name.
    """

    request: Request
    folder: Path
    protocol: TrainConfig
    candidates: list[Candidate]
    workload: "Speech | Labels"
    decoding: Decoding
    trainings: dict[tuple[str, int], Cell]
    evaluations: dict[tuple[str, int, str, str], Cell]
    reused: dict[str, Path]

    @property
    def options(self) -> CompareConfig:
        """Return the options of the comparison."""
        return self.request.options

    def cells(self) -> Iterator[Cell]:
        """Yield the cells of training and evaluation in the order of work."""
        yield from self.trainings.values()
        yield from self.evaluations.values()

    def run_folder(self, label: str, seed: int) -> Path:
        """Return the run folder of a training: new or reused."""
        cell = self.trainings[label, seed]
        if result := training_result(cell.state(self.folder)):
            return Path(os.path.relpath(self.folder / result.run))
        return self.reused.get(cell.name, self.folder / cell.name)


def make_plan(request: Request) -> Plan:
    """Plan a comparison.

    Raises:
        UserError: invalid candidates, a mechanism that no candidate can run with, or a missing manifest.
    """
    options = request.options
    protocol = settled(train_options(request.shared))
    labelled = recipe_task(protocol.recipe.name) is not None
    if labelled:
        refuse(options, NEEDS_SPEECH, f"with recipe={protocol.recipe.name}, which has no recordings")
    candidates, training_options = plan_candidates(request)
    folder = Path(options.folder or Path("exp", "compare", protocol.recipe.name))
    if options.budget and options.budget_clock == STEPS:
        for candidate in candidates:
            if lengths := set(LENGTHS.values()) & candidate.overrides.keys():
                raise UserError(
                    f"candidate {candidate.label}: {min(lengths)}= has no effect with budget_clock={STEPS}, "
                    "which sets the number of steps"
                )
        from asr.experiment.costs import steps_within  # loads Lightning

        seconds = {
            x.label: budget.seconds
            for x in candidates
            if (budget := parse_budget(x.budget or options.budget[0]))
        }
        steps = steps_within(seconds, training_options, folder, store=not options.dry_run)
        for candidate in candidates:
            count = candidate.overrides["trainer.max_steps"] = steps[candidate.label]
            training_options[candidate.label].trainer.max_steps = count
    decoding = plan_decoding(options)
    workload: Speech | Labels
    if labelled:
        from asr.experiment import labels  # loads Lightning

        workload = labels.Labels(options, training_options)
    else:
        workload = Speech(protocol, options, decoding)
    trainings: dict[tuple[str, int], Cell] = {}
    defaults = flat(to_dict(from_dict(train_schema(protocol.recipe.name), {}, "options")))
    planned = []  # with all options of this program, as finished runs have them
    for candidate in candidates:
        options_of = training_options[candidate.label]
        # Per candidate, because a candidate may have its own data.
        digests = workload.digests(candidate.label, options_of)
        for seed in candidate.seeds:
            planned.append(_training(candidate, options_of, seed, trainings, digests))
            trainings[candidate.label, seed] = as_stored(folder, planned[-1], defaults)
    folders: dict[str, str] = {}
    for (label, _), cell in trainings.items():
        if folders.setdefault(cell.name, label) != label:
            raise UserError(
                f"candidates: the labels {folders[cell.name]!r} and {label!r} are too similar for a folder"
            )
    others = [] if options.evaluate == [OWN] else options.evaluate
    for name in others:
        try:
            check_schedule(Variant.read(name).frames or "1")
        except UserError as error:
            raise UserError(f"evaluate=[{name}]: {error}") from None
        if not any(name in evaluated_with(candidate, [name]) for candidate in candidates):
            raise UserError(
                f"evaluate=[{name}]: no candidate's mechanism can be exchanged for it in as many layers"
            )
    wanted = others if options.evaluate else [*(x.attention for x in candidates), ORACLE]
    evaluations: dict[tuple[str, int, str, str], Cell] = {}
    decoding_defaults = flat(to_dict(DecodeOptions()))
    for candidate in candidates:
        for seed, split, variant in itertools.product(
            candidate.seeds,
            workload.splits,
            [*evaluated_with(candidate, wanted), *in_precisions(candidate, options)],
        ):
            cell = workload.evaluation(candidate.label, trainings[candidate.label, seed], split, variant)
            evaluations[candidate.label, seed, split, variant] = as_stored(folder, cell, decoding_defaults)
    places = [folder / RATES] if request.tried else []
    if options.reuse != "none":
        places.append(Path(options.reuse or Path("exp", protocol.recipe.name)))
    reused = _reused(folder, planned, places)
    return Plan(request, folder, protocol, candidates, workload, decoding, trainings, evaluations, reused)


def in_precisions(candidate: Candidate, options: CompareConfig) -> list[str]:
    """Return the variants of a candidate in further precisions, with the mechanism it was trained with."""
    further = (x for x in options.precisions if x != options.precision)
    return [str(Variant(candidate.attention, precision=x)) for x in further]


def settle_changes(plan: Plan) -> list[str]:
    """Refuse or discard cells with other settings; return a message for each discarded cell.

    Raises:
        UserError: a cell has other settings and `changed` is `refuse`; then nothing has been discarded.
    """
    messages: dict[str, str] = {}
    for cell in plan.cells():
        state = read_state(plan.folder, cell.name)
        before = stored_cell(cell.name, state)
        trained = training_result(state) if cell.kind == "training" else None
        run = plan.folder / (trained.run if trained else "")
        if trained and trained.reused and run.resolve() != plan.reused.get(cell.name, Path()).resolve():
            messages[cell.name] = f"{os.path.relpath(run)} no longer matches"
        elif not state.identity or before.key == cell.key or _is_untouched(plan.folder / cell.name, state):
            if trained:
                _check_checkpoints(run)
            has_model = cell.needs not in messages and _is_done(plan, cell.needs)
            if not cell.needs or state.status == "missing" or has_model:
                continue
            messages[cell.name] = f"running again, because {cell.needs} will be"
        else:
            difference = ", ".join(
                f"{key.removeprefix('options.')}: {was} → {is_now}"
                for key, (was, is_now) in differences(before.settings, cell.settings).items()
            )
            if plan.options.changed == "refuse":
                raise UserError(
                    f"{plan.folder / cell.name}: exists with other settings ({difference}); "
                    "keep it and use folder=<another>, or replace it with changed=rerun"
                )
            messages[cell.name] = f"running again ({difference})"
    for name in messages:
        shutil.rmtree(plan.folder / name, ignore_errors=True)
    return [f"{name}: {message}" for name, message in messages.items()]


def _is_untouched(folder: Path, state: Journal) -> bool:
    """Return whether a cell was planned, but its worker hasn't written anything yet."""
    known = (JOURNAL, STATE, "cell.json")  # the last two by earlier versions
    return state.status == "missing" and all(path.name in known for path in folder.glob("*"))


def _is_done(plan: Plan, name: str) -> bool:
    return read_state(plan.folder, name).status == "done"


def _check_checkpoints(run: Path) -> None:
    """Raise UserError if a checkpoint of a finished run is damaged or belongs to another run."""
    if path := checkpoint.foreign(run):
        raise UserError(
            f"{path}: expected a checkpoint of the run in {run}, found one of another run or damaged; "
            "restore it, or delete the run's folder to train again"
        )


def slug(label: str) -> str:
    """Return a label as part of a path.

    Example:
        >>> slug("6 layers, i-clustered-200:topk=16")
        '6-layers,i-clustered-200:topk=16'
    """
    return re.sub(r"[^\w.,:=+-]+", "-", label.replace(", ", ",").replace(" → ", "+to+")).strip("-")


def _training(
    candidate: Candidate,
    training: TrainConfig,
    seed: int,
    trainings: dict[tuple[str, int], Cell],
    data: dict[str, str],
) -> Cell:
    options = flat(to_dict(training)) | {"seed": seed}
    unkeyed = {key: options[key] for key in affecting(training, "place")}
    settings = {key: value for key, value in options.items() if key not in unkeyed}
    needs = start = ""
    parents = {s: cell for (label, s), cell in trainings.items() if label == candidate.finetuned_from}
    if parents:
        parent = parents.get(seed) or next(iter(parents.values()))
        needs, start = parent.name, parent.key
    elif training.init_from or training.model.encoder:
        start = start_digest(training)
    name = f"trainings/{slug(candidate.label)}/seed{seed}"
    inputs = {"data": data, "start": start} | code_entry(candidate.attention)
    return Cell(name, "training", {"options": settings, **inputs}, needs, unkeyed)


def _reused(folder: Path, trainings: Iterable[Cell], places: list[Path]) -> dict[str, Path]:
    """Return the finished runs to use instead of training, by cell name.

    A cell keeps a run that it has adopted, as long as the run has the cell's settings.

    Args:
        folder: folder of the comparison.
        trainings: cells of training.
        places: folders with further runs.
    """
    search = functools.cache(finished_runs)  # reads each run once
    by_name = {}
    for cell in trainings:
        if cell.needs or RunFolder(folder / cell.name).options.exists():
            continue
        before = training_result(read_state(folder, cell.name))
        earlier = [Path(os.path.relpath(folder / before.run))] if before and before.reused else []
        known = itertools.chain(
            ((run, read_run(run)) for run in earlier), itertools.chain.from_iterable(map(search, places))
        )
        if adopted := next((run for run, work in known if suits(run, work, cell.settings)), None):
            by_name[cell.name] = adopted
    return by_name


def timing_cells(plan: Plan) -> list[Cell]:
    """Return a cell per split that times every candidate in all its variants.

    The model of the first seed with a finished evaluation is timed, because times don't depend on weights.
    """
    timed: dict[tuple[str, str, str], Cell] = {}
    for (label, _, split, variant), cell in plan.evaluations.items():
        if cell.is_done(plan.folder):
            timed.setdefault((label, split, variant), cell)
    keys = {cell.name: cell.key for cell in plan.trainings.values()}
    cells = []
    for split in dict.fromkeys(split for _, _, split, _ in plan.evaluations):
        models = [
            # The key is the training's, because forward times don't depend on the search.
            {"label": label, "variant": variant, "training": cell.needs, "key": keys[cell.needs]}
            for (label, on, variant), cell in timed.items()
            if on == split
        ]
        settings = {
            "models": models,
            "repeats": plan.options.timing_repeats,
            "device": plan.options.device,
            "precision": plan.options.precision,
            "threads": TIMING_THREADS,
        }
        settings |= code_entry(*(Variant.read(str(model["variant"])).attention for model in models))
        settings |= plan.workload.timing(split, [cell for (_, on, _), cell in timed.items() if on == split])
        if models:
            # One cell for all models, so that the same machine times all of them.
            cells.append(Cell(f"timings/{split}", "timing", settings))
    return cells
