"""`asr approximate`: a fine-tuned transformers model's score with its attention exchanged."""

from dataclasses import asdict, replace
from pathlib import Path

from rich.table import Table

from asr import config
from asr.approximation.options import SQUAD, Options
from asr.approximation.question_map import question_map
from asr.approximation.run import Evaluation, Score, TaskResult, canonical
from asr.attention.transformers_adapter import ReplacedAttention
from asr.console import duration, open_console, progress
from asr.environment import describe_environment, pick_device
from asr.files import check_writable, locked, write_json
from asr.report import question_chart
from asr.report.figure import export

POSITIONAL = ""


def parse(words: list[str]) -> Options:
    """Parse options; mechanisms in canonical form, each task once."""
    options = config.parse(Options, words)
    for name in options.attentions:
        ReplacedAttention(name, options.backend, cross_attention=False)  # refuses what doesn't fit
    return replace(
        options,
        attentions=canonical(options.attentions),
        task=list(dict.fromkeys(options.task)),
        device=pick_device(options.device),
    )


def run(paths: list[Path], options: Options) -> None:
    """Evaluate, print a table in Table 4's layout and one per task, write results, predictions and map.

    Raises:
        UserError: a missing or unsuitable model, file or mechanism.
    """
    folder = Path(options.folder)
    check_writable(folder / "results.json")
    console = open_console()
    with locked(folder, "asr approximate"):
        # All tasks are opened first, so that a missing file is found before hours of work.
        evaluations = {task: Evaluation(task, options, folder / task) for task in options.task}
        for task, evaluation in evaluations.items():
            if stored := len(evaluation.batches) * len(options.attentions) - evaluation.todo:
                console.print(f"{task}: reusing {stored:,} of {stored + evaluation.todo:,} stored batches")
        results = []
        with progress() as bars:
            bar = bars.add_task("evaluating", total=sum(x.todo for x in evaluations.values()))
            for evaluation in evaluations.values():
                results.append(evaluation.run(lambda what: bars.update(bar, description=what, advance=1)))
        console.print(_table_4(results))
        for result in results:
            console.print(_details(result, options.device))
        record = {
            "options": asdict(options),
            "environment": describe_environment() | {"device": options.device},
            "tasks": [asdict(result) for result in results],
        }
        written = [folder / "results.json"]
        if SQUAD in evaluations:
            mapped = question_map(evaluations[SQUAD], options)
            record["map"] = mapped.as_json()
            written += export(question_chart.figure(mapped, record), folder)
        write_json(record, folder / "results.json")
    console.print(f"written: {', '.join(map(str, written))}")


def _table_4(results: list[TaskResult]) -> Table:
    """Return the table in the paper's layout: mechanisms in rows, tasks in columns, higher is better."""
    table = Table(
        title="Table 4: score with the attention exchanged, 95 % bootstrap intervals", title_justify="left"
    )
    table.add_column("attention", no_wrap=True)
    for result in results:
        table.add_column(f"{result.task} {next(iter(result.rows[0].scores))}", justify="right")
    for rows in zip(*(result.rows for result in results), strict=True):
        table.add_row(rows[0].attention, *(_score(next(iter(row.scores.values()))) for row in rows))
    return table


def _details(result: TaskResult, device: str) -> Table:
    clock = "CPU time" if device == "cpu" else "time"
    title = (
        f"{result.task}: {result.examples:,} examples, {result.windows:,} inputs, "
        f"{result.tokens / result.windows:.0f} tokens on average"
    )
    others = list(result.rows[0].scores)
    table = Table(title=title, title_justify="left")
    table.add_column("attention", no_wrap=True)
    for name in (*others, f"{others[0]} / full", f"{clock} per example", f"{clock} / full (quartiles)"):
        table.add_column(name, justify="right")
    for row in result.rows:
        times = "–"
        if row.time_ratio is not None and row.time_quartiles is not None:
            low, high = row.time_quartiles
            times = f"{row.time_ratio:.2f} ({low:.2f} … {high:.2f})"
        scores = [_score(score) for score in row.scores.values()]
        table.add_row(row.attention, *scores, _score(row.ratio), duration(row.example_s), times)
    return table


def _score(score: Score | None) -> str:
    if score is None:
        return "–"
    if score.interval is None:
        return f"{score.value:.3f}"
    low, high = score.interval
    return f"{score.value:.3f} ({low:.3f} … {high:.3f})"
