"""The page of `asr approximate`, until `asr compare model=` has replaced it: its record as results."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr import config
from asr.approximation.options import TRANSCRIPTION, Options
from asr.approximation.run import MechanismResult, TaskResult
from asr.console import Table
from asr.experiment.records import Candidate, Evaluation
from asr.experiment.results import Results
from asr.experiment.variant import Variant
from asr.files import read_as
from asr.report.drawing import drawn, per_split
from asr.report.page import write_report
from asr.report.tables import scores
from asr.scoring.estimates import Estimate


@dataclass(frozen=True)
class ExchangeRecord:
    """Content of results.json: options and environment of the command, its end, and what it measured."""

    options: dict[str, Any]
    environment: dict[str, Any]
    created: str
    tasks: list[dict[str, Any]]
    maps: list[dict[str, Any]]


def write_exchange(folder: Path) -> tuple[list[Table], list[Path]]:
    """Draw all tables and figures of a folder's results.json: results.md, report.html, and images.

    Returns:
        The tables, and the files that belong to the results.
    """
    path = folder / "results.json"
    record = read_as(ExchangeRecord, path, "results of asr approximate")
    options: Options = config.from_dict(Options, record.options, str(path))
    tasks = [TaskResult.from_dict(task, f"{path}: tasks") for task in record.tasks]
    label = Path(options.model).name
    cpu = options.device == "cpu"
    results = Results(
        command=list(record.environment.get("command") or ["asr", "approximate"]),
        recipe="questions" if record.maps else "",
        created=record.created,
        protocol={
            "clock": "cpu" if cpu else "wall",
            "baseline": options.baseline,
            "exchange": record.options,
            "sizes": {x.task: {"timed": x.timed, "inputs": x.windows, "tokens": x.tokens} for x in tasks},
        },
        environment=record.environment,
        data={},
        candidates=[Candidate(label, "full", "full", None, 0, 0, {}, None, [0], source=options.model)],
        trainings=[],
        evaluations=[_evaluation(label, x, row, cpu) for x in tasks for row in x.rows],
        failures=[],
        drawn={"maps": record.maps},
    )
    page = write_report(results, folder)
    tables = drawn(results, [per_split(scores.table, scores.ratios, scores.by_layer)])
    figures = sorted((folder / "figures").glob("*.*"))
    return [x for x in tables if isinstance(x, Table)], [path, folder / "results.md", page, *figures]


def _evaluation(label: str, task: TaskResult, row: MechanismResult, cpu: bool) -> Evaluation:
    total = row.example_s * task.examples
    ratios = {name.lower(): _entry(x) for name, x in row.ratios.items() if x}
    if row.time_ratio is not None and row.time_quartiles:
        ratios["time"] = {"rate": row.time_ratio, "interval": list(row.time_quartiles)}
    name = row.attention
    return Evaluation(
        label,
        0,
        task.task,
        name if Variant.read(f"full {name}").attention != "full" else f"full {name}",
        "greedy" if task.task == TRANSCRIPTION else "",
        task.task,
        "done",
        rates={name.lower(): _entry(x) for name, x in row.scores.items()},
        ratios=ratios,
        forward_s=None if cpu else total,
        forward_cpu_s=total if cpu else None,
        peak_mib=None if row.peak_bytes is None else row.peak_bytes / 2**20,
        utterances=task.examples,
    )


def _entry(estimate: Estimate) -> dict[str, Any]:
    return {"rate": estimate.value, "interval": estimate.interval and list(estimate.interval)}
