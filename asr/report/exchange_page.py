"""The page of `asr approximate`: what exchanging a trained model's attention costs, in one HTML file."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from asr import config
from asr.approximation import tables
from asr.approximation.options import TRANSCRIPTION, Options, rival_of
from asr.approximation.question_map import QuestionMap
from asr.approximation.run import MechanismResult, TaskResult
from asr.approximation.tables import PERCENT, words
from asr.attention.table import layer_runs
from asr.console import Table, TableCell
from asr.files import read_as, write_text
from asr.report import exchange_chart, layer_chart, question_chart, theme
from asr.report.exchange_chart import DIVERGENCE
from asr.report.figure import Figure, export
from asr.report.findings import Finding
from asr.report.page import PAGE, created_words, markdown, render
from asr.report.protocol import settings
from asr.report.provenance import of_environment


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

    Raises:
        UserError: results.json is missing, or is not from `asr approximate`.
    """
    path = folder / "results.json"
    record = read_as(ExchangeRecord, path, "results of asr approximate")
    options: Options = config.from_dict(Options, record.options, str(path))
    results = [TaskResult.from_dict(task, f"{path}: tasks") for task in record.tasks]
    maps = [QuestionMap.from_json(one, f"{path}: maps") for one in record.maps]
    clock = "CPU time" if options.device == "cpu" else "time"
    shown = [tables.table_4(results)]
    for result in results:
        shown += [tables.score_table(result, clock), tables.ratio_table(result, clock)]
        if _swept(result, options):
            shown.append(tables.layer_table(result))
    write_text(markdown(shown), folder / "results.md")
    drawn = [(figure, export(figure, folder)) for figure in _figures(results, maps, options, asdict(record))]
    page = _write_page(results, shown[len(results) == 1 :], drawn, record, folder)
    return shown, [path, folder / "results.md", page, *(file for _, files in drawn for file in files)]


def _swept(result: TaskResult, options: Options) -> bool:
    """Return whether one layer at a time was exchanged."""
    return bool(options.sweep) and result.task == TRANSCRIPTION


def _figures(
    results: list[TaskResult], maps: list[QuestionMap], options: Options, record: dict[str, Any]
) -> Iterator[Figure]:
    """Yield the figures of all tasks."""
    for result in results:
        if _swept(result, options):
            yield layer_chart.figure(result, tables.by_layer(result), record)
        else:
            yield from exchange_chart.figures(result, record)
    if maps:
        yield question_chart.figure(maps, record)


def _write_page(
    results: Sequence[TaskResult],
    shown: Iterable[Table],
    figures: Sequence[tuple[Figure, list[Path]]],
    record: ExchangeRecord,
    folder: Path,
) -> Path:
    source = of_environment(record.environment, "", str(record.options["data"]))
    numbered = [
        replace(table, key=f"table-{number}", label=f"Table {number}", rows=list(map(_cells, table.rows)))
        for number, table in enumerate(shown, 1)
    ]
    body: list[Figure | Table] = [*(figure for figure, _ in figures), *numbered]
    names = dict.fromkeys(
        spec.name
        for result in results
        for row in result.rows
        if not any(rival_of(row.attention))
        for spec, _ in layer_runs(row.attention)
    )
    sections = [("summary", "Summary"), *((item.key, item.label) for item in body), ("protocol", "Protocol")]
    html = render(
        "sections.html.jinja",
        body,
        source,
        {figure.key: files for figure, files in figures},
        list(names),
        {"errors": None},
        heading=f"{Path(record.options['model']).name}: attention exchanged",
        eyebrow=f"asr approximate · {created_words(record.created)}",
        files="results.json and results.md",
        sections=sections,
        protocol="One trained model, its attention exchanged and nothing retrained. Mechanisms run in turn "
        "on each batch. Intervals are 95 % bootstrap intervals over inputs; ratios are on the same "
        "resampled inputs.",
        findings=[finding for result in results for finding in _findings(result)],
        settings=list(settings(record.options)),
        environment=list(settings(record.environment)),
    )
    path = folder / PAGE
    write_text(html, path)
    return path


def _cells(row: list[TableCell]) -> list[TableCell]:
    """Return a row that the page can sort, by mechanism or by the number that a cell begins with."""
    found = [replace(row[0], sort=row[0].text, family=theme.family(row[0].text))]
    for cell in row[1:]:
        number = re.match(r"-?\d+(\.\d+)?", cell.text)
        found.append(replace(cell, sort=float(number[0]) if number else None))
    return found


def _findings(result: TaskResult) -> Iterator[Finding]:
    """Yield what was evaluated, and the mechanisms that are closest to the baseline and fastest."""
    sizes = f"{result.examples:,} examples, {len(result.rows)} mechanisms"
    yield Finding(result.task, f"{sizes}; nothing was retrained.")
    others = [row for row in result.rows if row.attention != result.baseline]
    if not others:
        return
    first = next(iter(others[0].scores))
    if DIVERGENCE in others[0].scores:
        closest = min(others, key=lambda row: row.scores[DIVERGENCE].value)
        shown = f"{_score(closest, DIVERGENCE)}, {_score(closest, first)}"
        yield Finding("Closest to full attention", f"{closest.attention}: {shown}.")
    timed = [row for row in others if row.time_ratio is not None]
    if timed:
        fastest = min(timed, key=lambda row: row.time_ratio or 0.0)
        ratio = f"{fastest.time_ratio:.2f} of the time of {result.baseline}"
        yield Finding("Fastest", f"{fastest.attention}: {ratio}, {_score(fastest, first)}.")


def _score(row: MechanismResult, name: str) -> str:
    """Return a score with its name and unit."""
    return f"{name} {words(row.scores[name], name)}{' %' if name in PERCENT else ''}"
