"""The page of `asr approximate`: what exchanging a trained model's attention costs, in one HTML file."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from asr.approximation.run import MechanismResult, TaskResult
from asr.approximation.tables import PERCENT, words
from asr.attention.table import layer_runs
from asr.console import Table, TableCell
from asr.files import write_text
from asr.report import theme
from asr.report.exchange_chart import DIVERGENCE
from asr.report.figure import Figure
from asr.report.findings import Finding
from asr.report.page import PAGE, created_words, render
from asr.report.protocol import settings
from asr.report.provenance import of_environment


def write_exchange_page(
    results: Sequence[TaskResult],
    tables: Iterable[Table],
    figures: Sequence[tuple[Figure, list[Path]]],
    record: dict[str, Any],
    folder: Path,
) -> Path:
    """Write `report.html` into a folder and return its path.

    Args:
        results: results of the tasks.
        tables: all tables, in page order.
        figures: figures in page order, with their files.
        record: content of `results.json`.
        folder: output folder.
    """
    source = of_environment(record["environment"], "", str(record["options"]["data"]))
    numbered = [
        replace(table, key=f"table-{number}", label=f"Table {number}", rows=list(map(_cells, table.rows)))
        for number, table in enumerate(tables, 1)
    ]
    body: list[Figure | Table] = [*(figure for figure, _ in figures), *numbered]
    names = dict.fromkeys(
        spec.name for result in results for row in result.rows for spec, _ in layer_runs(row.attention)
    )
    sections = [("summary", "Summary"), *((item.key, item.label) for item in body), ("protocol", "Protocol")]
    html = render(
        "exchange.html.jinja",
        body,
        source,
        {figure.key: files for figure, files in figures},
        list(names),
        {"errors": None},
        heading=f"{Path(record['options']['model']).name}: attention exchanged",
        eyebrow=f"asr approximate · {created_words(datetime.now(timezone.utc).isoformat())}",
        files="results.json and results.md",
        sections=sections,
        findings=[finding for result in results for finding in _findings(result)],
        settings=list(settings(record["options"])),
        environment=list(settings(record["environment"])),
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
