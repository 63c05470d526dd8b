"""Trained models of recipes without recordings, measured on a split of their data."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from asr.environment import describe_environment, pick_device
from asr.experiment.collect import enter_run
from asr.experiment.records import Candidate, Evaluation, Training
from asr.experiment.results import Results
from asr.records.run_folder import RunFolder
from asr.scoring.measures import is_share
from asr.training.config import run_options
from asr.training.labelling import LabelScore, evaluate, load_task
from asr.training.options import EvaluateOptions


def evaluate_runs(
    runs: Sequence[Path], options: EvaluateOptions, advance: Callable[[Path, float], None]
) -> Results:
    """Return the measures of runs, with what is known of their trainings.

    Args:
        runs: run folders.
        options: split and mechanism.
        advance: called with a run and its completed fraction.

    Raises:
        UserError: see `load_task` and `evaluate`.
    """
    environment, device = describe_environment(), pick_device(options.device)
    results = Results(environment.pop("command"), environment=environment | {"device": device})
    for run in dict.fromkeys(runs):
        task, data = load_task(str(run), options.attention, device)
        trained, label = run_options(RunFolder(run)), str(run)
        score = evaluate(task, data, options.split, options.items, partial(advance, run))
        candidate = Candidate(label, trained.attention, layers=trained.model.layers, seeds=[trained.seed])
        training = Training(label, trained.seed, label, "running", dev_error_name=f"dev_{score.measure}")
        if RunFolder(run).summary.exists():
            training.status = "done"
            enter_run(training, run)
        row = Evaluation(label, trained.seed, options.split, score.attention, "", "", "done")
        row.rates, row.utterances, row.backend = _rates(score), score.items, score.backend
        results.recipe = trained.recipe.name
        results.candidates.append(candidate)
        results.trainings.append(training)
        results.evaluations.append(row)
    return results


def _rates(score: LabelScore) -> dict[str, dict[str, object]]:
    """Return the measure, and the perplexities that follow from bits per label."""
    rates: dict[str, dict[str, object]] = {}
    rates[score.measure] = {"rate": score.value, "interval": score.interval, "length": score.labels}
    if not is_share(score.measure):
        ends = score.interval and [2**x for x in score.interval]
        rates["perplexity"] = {"rate": 2**score.value, "interval": ends}
        rates["perplexity_over_items"] = {"rate": score.item_perplexity, "interval": None}
    return rates
