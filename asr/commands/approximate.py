"""`asr approximate`: a trained transformers model's score with its attention exchanged."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID

from asr import config
from asr.approximation import tables
from asr.approximation.ctc_model import Opened
from asr.approximation.options import FULL, SQUAD, TRANSCRIPTION, Options
from asr.approximation.pretrained import require_model
from asr.approximation.question_map import check_choice, question_maps
from asr.approximation.run import TaskEvaluation, TaskResult, open_task
from asr.attention.table import canonical
from asr.attention.transformers_adapter import ReplacedAttention
from asr.console import open_console, progress
from asr.environment import describe_environment, pick_device
from asr.errors import UserError
from asr.files import check_writable, locked, write_json, write_text
from asr.recognizer import Recognizer
from asr.report import exchange_chart, layer_chart, question_chart
from asr.report.exchange_page import write_exchange_page
from asr.report.figure import Figure, export


def parse(overrides: list[str]) -> Options:
    """Parse options; mechanisms in canonical form, each task once."""
    options = config.parse(Options, overrides)
    attentions = list(dict.fromkeys(canonical(options.attentions)))
    for name in attentions:
        ReplacedAttention(name, options.backend, cross_attention=False)  # refuses what doesn't fit
    (baseline,) = canonical([options.baseline])
    if baseline not in (FULL, *attentions):
        raise UserError(f"baseline={baseline}: expected one of attentions, {', '.join(attentions)}")
    if options.sweep and any("*" in name for name in attentions):
        raise UserError(f"sweep={options.sweep}: expected one mechanism for all layers in each of attentions")
    return replace(
        options,
        attentions=attentions,
        baseline=baseline,
        task=list(dict.fromkeys(options.task)),
        device=pick_device(options.device),
    )


def main(paths: list[str], overrides: list[str]) -> None:
    """Run the evaluation that the overrides describe."""
    run([], parse(overrides))


def run(paths: list[Path], options: Options) -> None:
    """Evaluate, print a table in Table 4's layout and one per task, write results, predictions and map.

    Raises:
        UserError: a missing or unsuitable model, file or mechanism.
    """
    folder = Path(options.folder)
    check_writable(folder / "results.json")
    console = open_console()
    with locked(folder, "asr approximate"):
        for task in options.task:  # before hours of work on another one
            if task != TRANSCRIPTION:
                require_model(options.model_of(task))
            open_task(task, options, open_model)
        results, mapped = [], []
        for task in options.task:
            evaluation = TaskEvaluation(task, options, folder / task, open_model)
            if stored := len(evaluation.batches) * len(evaluation.names) - evaluation.todo:
                console.print(f"{task}: reusing {stored:,} of {stored + evaluation.todo:,} stored batches")
            if task == SQUAD:
                check_choice(evaluation, options)
            with progress() as bars:
                bar = bars.add_task(task, total=evaluation.todo)
                results.append(evaluation.run(partial(_advance, bars, bar)))
            if task == SQUAD:
                mapped = question_maps(evaluation, options)
        clock = "CPU time" if options.device == "cpu" else "time"
        shown = [tables.table_4(results)]
        for result in results:
            shown += [tables.score_table(result, clock), tables.ratio_table(result, clock)]
            if swept(result, options):
                shown.append(tables.layer_table(result))
        for table in shown:
            console.print(table)
        write_text("\n".join(f"{x.title}\n\n{x.markdown()}\n" for x in shown), folder / "results.md")
        record = {
            "options": asdict(options),
            "environment": describe_environment() | {"device": options.device},
            "tasks": [result.as_dict() for result in results],
        }
        figures = list(_figures(results, options, record))
        if mapped:
            record["maps"] = [one.as_json() for one in mapped]
            figures.append(question_chart.figure(mapped, record))
        write_json(record, folder / "results.json")
        drawn = [(figure, export(figure, folder)) for figure in figures]
        page = write_exchange_page(results, shown[len(results) == 1 :], drawn, record, folder)
        written = [folder / "results.json", folder / "results.md", page]
        written += [file for _, files in drawn for file in files]
    console.print(f"written: {', '.join(map(str, written))}")


def swept(result: TaskResult, options: Options) -> bool:
    """Return whether one layer at a time was exchanged."""
    return bool(options.sweep) and result.task == TRANSCRIPTION


def _figures(results: list[TaskResult], options: Options, record: dict[str, Any]) -> Iterator[Figure]:
    """Yield the figures of all tasks."""
    for result in results:
        if swept(result, options):
            yield layer_chart.figure(result, tables.by_layer(result), record)
        elif found := exchange_chart.figure(result, record):
            yield found


def open_model(path: Path, device: str) -> Opened:
    """Return model and tokenizer of a run, or of a published CTC model."""
    found = Recognizer.load(path, device=device, attention=FULL)
    return found.model, found.tokenizer


def _advance(bars: Progress, bar: TaskID, what: str) -> None:
    bars.update(bar, description=what, advance=1)
