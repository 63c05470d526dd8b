"""`asr approximate`: a trained transformers model's score with its attention exchanged."""

from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from rich.progress import Progress, TaskID

from asr import config
from asr.approximation.ctc_model import Opened
from asr.approximation.options import FULL, SQUAD, TRANSCRIPTION, Options
from asr.approximation.pretrained import require_model
from asr.approximation.question_map import QuestionMap, check_choice, question_maps
from asr.approximation.run import TaskEvaluation, TaskResult, open_task
from asr.attention.table import canonical, given_name
from asr.attention.transformers_adapter import ReplacedAttention
from asr.console import open_console, progress
from asr.environment import describe_environment, pick_device
from asr.errors import UserError
from asr.files import check_writable, locked, write_json
from asr.recognizer import Recognizer
from asr.report.exchange_page import write_exchange


def parse(overrides: list[str]) -> Options:
    """Parse options; mechanisms in canonical form, each task once."""
    options = config.parse(Options, overrides)
    attentions = list(dict.fromkeys(canonical(options.attentions)))
    for name in attentions:
        ReplacedAttention(name, options.backend, cross_attention=False)  # refuses what doesn't fit
    baseline = given_name(options.baseline)
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
        results: list[TaskResult] = []
        mapped: list[QuestionMap] = []
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
        record = {
            "options": asdict(options),
            "environment": describe_environment() | {"device": options.device},
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "tasks": [result.as_dict() for result in results],
            "maps": [one.as_json() for one in mapped],
        }
        write_json(record, folder / "results.json")
        shown, written = write_exchange(folder)
    for table in shown:
        console.print(table)
    console.print(f"written: {', '.join(map(str, written))}")


def open_model(path: Path, device: str) -> Opened:
    """Return model and tokenizer of a run, or of a published CTC model."""
    found = Recognizer.load(path, device=device, attention=FULL)
    return found.model, found.tokenizer


def _advance(bars: Progress, bar: TaskID, what: str) -> None:
    bars.update(bar, description=what, advance=1)
