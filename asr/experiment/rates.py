"""Tunes the learning rate of each candidate: trains once with each rate; the lowest dev error decides.

These trainings are another comparison, in the folder `learning_rates/` of the main one, which uses the run at
the chosen rate for its first seed. It evaluates nothing, so the test set has no influence.
"""

import dataclasses
import math

from rich.console import Console

from asr.errors import UserError
from asr.experiment.candidates import entries
from asr.experiment.collect import collect
from asr.experiment.options import STEPS
from asr.experiment.plan import RATES, Plan, make_plan
from asr.experiment.progress import print_plan
from asr.experiment.records import TriedRate
from asr.experiment.request import LEARNING_RATE, Request
from asr.experiment.results import Results
from asr.experiment.run import run_plan


def with_tuned_rates(request: Request, console: Console) -> Request:
    """Train every candidate with each rate of `learning_rates`; return the comparison at the chosen rates.

    With `dry_run`, missing trainings are listed, and the comparison keeps its rate.

    Raises:
        UserError: a candidate sets its rate itself, starts from another candidate, or has no training that
            ended with a dev error.
    """
    trials, labels, later = _trials(request)
    if request.options.dry_run:
        console.print("first, one training per learning rate:")
        print_plan(trials, console)
        results = collect(trials)
        if any(x.status == "missing" for x in results.trainings):
            console.print("then the comparison, here still at one rate; its first seed has the runs above:")
            return _without_rates(request)
    else:
        results = run_plan(trials, console, later)
    tried = choose(results, labels)
    chosen = {x.candidate: x.rate for x in tried if x.chosen}
    rated = [entry | {"label": label} for entry, label in zip(entries(request), chosen, strict=True)]
    for entry in rated:
        entry[LEARNING_RATE] = chosen[entry["label"]]
    request = _without_rates(request)
    options = dataclasses.replace(request.options, attentions=[], candidates=rated)
    return dataclasses.replace(request, options=options, tried=tried)


def _without_rates(request: Request) -> Request:
    return dataclasses.replace(request, options=dataclasses.replace(request.options, learning_rates=[]))


def _trials(request: Request) -> tuple[Plan, dict[str, tuple[str, float]], int]:
    """Plan the trainings that try the rates.

    Returns:
        The plan; candidate and rate by label in the plan; and the number of trainings that follow: all seeds
        but the first.
    """
    asked = entries(request)
    for entry in asked:
        if LEARNING_RATE in entry:
            raise UserError(
                f"candidate {entry['attention']}: {LEARNING_RATE}= can't be combined with learning_rates"
            )
    plan = make_plan(_without_rates(request))  # labels and steps
    names = {x.label for x in plan.candidates}
    trials, labels = [], {}
    for entry, candidate in zip(asked, plan.candidates, strict=True):
        if candidate.finetuned_from in names:
            raise UserError(
                f"candidate {candidate.label}: init_from={candidate.finetuned_from} can't be combined with "
                "learning_rates, because that model's rate isn't known yet; give its run folder"
            )
        if request.options.budget_clock == STEPS and "trainer.max_steps" in candidate.overrides:
            entry = entry | {"trainer.max_steps": candidate.overrides["trainer.max_steps"]}
        for rate in request.options.learning_rates:
            label = f"{candidate.label}, {rate:g}"
            labels[label] = candidate.label, rate
            trials.append(entry | {"label": label, LEARNING_RATE: rate, "seeds": candidate.seeds[:1]})
    options = dataclasses.replace(
        request.options,
        attentions=[],
        candidates=trials,
        # The steps that fit in the budget are known, and part of the trials.
        budget=[] if request.options.budget_clock == STEPS else request.options.budget,
        evaluate=["own"],
        folder=str(plan.folder / RATES),
        learning_rates=[],
    )
    inner = make_plan(dataclasses.replace(request, options=options, paper=None))
    later = sum(len(candidate.seeds) - 1 for candidate in plan.candidates)
    return dataclasses.replace(inner, evaluations={}), labels, later


def choose(results: Results, labels: dict[str, tuple[str, float]]) -> list[TriedRate]:
    """Return the tried rates; for each candidate, the rate with the lowest dev error is chosen.

    If errors are equal, as at the start of training, the lower loss decides.
    """
    tried: dict[str, list[TriedRate]] = {}
    for training in results.trainings:
        candidate, rate = labels[training.candidate]
        loss = next((x.dev_loss for x in training.curve if x.step == training.best_step), None)
        known = TriedRate(candidate, rate, training.dev_error, loss, training.train_cpu_s, training.train_s)
        tried.setdefault(candidate, []).append(known)
    for candidate, trials in tried.items():
        best = min(trials, key=_order)
        if math.isinf(_order(best)[0]):
            reasons = [x.error for x in results.trainings if labels[x.candidate][0] == candidate and x.error]
            why = f"; the first failed: {reasons[0]}" if reasons else ""
            raise UserError(f"learning_rates: no training of {candidate} ended with an error on dev{why}")
        trials[trials.index(best)] = dataclasses.replace(best, chosen=True)
    return [x for trials in tried.values() for x in trials]


def _order(tried: TriedRate) -> tuple[float, float]:
    values = (tried.dev_error, tried.dev_loss)
    error, loss = (math.inf if value is None or math.isnan(value) else value for value in values)
    return error, loss
