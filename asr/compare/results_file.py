"""The results of a comparison as results.json, read back as well, and as results.csv."""

import csv
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from asr.compare.records import Candidate, CurvePoint, Evaluation, Failure, Split, Training
from asr.compare.results import FORMAT, Results
from asr.errors import UserError
from asr.files import atomic_text, write_json

# What differs between two runs of the same comparison on the same machine: clocks, memory, the environment.
MEASURED = frozenset(
    {
        "created",
        "environment",
        "commit",
        "hardware",
        "train_s",
        "train_cpu_s",
        "seconds_per_epoch",
        "time_to_best_s",
        "time_to_best_cpu_s",
        "peak_memory_mib",
        "peak_gpu_memory_mib",
        "forward_s",
        "forward_cpu_s",
        "forward_repeats_s",
        "decode_s",
    }
)


def without_times(value: Any) -> Any:
    """Return plain data of results without what a clock or the memory's meter gave.

    What is left is the same for an interrupted comparison as for one that ran through, if its budget is one
    of steps or epochs.
    """
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in MEASURED}
    if isinstance(value, list):
        return [without_times(item) for item in value]
    return value


def write_results(results: Results, folder: Path) -> None:
    """Write results.json and results.csv (a row for each evaluation, with its training beside it)."""
    write_json(asdict(results), folder / "results.json")
    _write_csv(results, folder / "results.csv")


def read_results(path: Path) -> Results:
    """Read results.json, or the one of a folder.

    Raises:
        UserError: no such file, not JSON, or of another format.
    """
    path = path / "results.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: expected results of asr compare, found {error}") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else type(values).__name__
        raise UserError(f"{path}: expected results of format {FORMAT}, found {found!r}")
    try:
        return _from_dict(values)
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: not results of format {FORMAT} ({error})") from None


def _from_dict(values: dict[str, Any]) -> Results:
    values = dict(values)
    values["data"] = {name: Split(**split) for name, split in values["data"].items()}
    for name, kind in (("candidates", Candidate), ("evaluations", Evaluation), ("failures", Failure)):
        values[name] = [kind(**entry) for entry in values[name]]
    values["trainings"] = [
        Training(**{**entry, "curve": [CurvePoint(**point) for point in entry["curve"]]})
        for entry in values["trainings"]
    ]
    return Results(**values)


def _write_csv(results: Results, path: Path) -> None:
    trainings = {(x.candidate, x.seed): x for x in results.trainings}
    of_training = [x.name for x in fields(Training) if x.name not in ("candidate", "seed", "curve")]
    rows = []
    for evaluation in results.evaluations:
        candidate = results.candidate(evaluation.candidate)
        row: dict[str, Any] = {"recipe": results.recipe, "candidate": evaluation.candidate}
        row |= {"trained_with": candidate.attention, "layers": candidate.layers, "seed": evaluation.seed}
        row |= {name: getattr(evaluation, name) for name in ("split", "attention", "decoder", "status")}
        for metric in results.metrics():
            rate = evaluation.rates.get(metric, {})
            low, high = rate.get("interval", (None, None))
            row |= {metric: rate.get("rate"), f"{metric}_low": low, f"{metric}_high": high}
            counts = ("substitutions", "deletions", "insertions", "length")
            row |= {f"{metric}_{name}": rate.get(name) for name in counts}
        timing = ("forward_s", "forward_cpu_s", "audio_s", "utterances", "decode_s", "backend", "error")
        row |= {name: getattr(evaluation, name) for name in timing}
        training = trainings[evaluation.candidate, evaluation.seed]
        row |= {f"training_{name}": getattr(training, name) for name in of_training}
        rows.append(row)
    with atomic_text(path) as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["candidate"])
        writer.writeheader()
        writer.writerows(rows)
