"""The page of results: the list of its figures and tables, and writing it as HTML, PNG, PDF and Markdown.

Comparisons, exchanges of a trained model's attention, single trainings and benchmarks use the same page;
figures and tables without data are left out. To add one, write a function of `Results` in a module of its
own, and add a line to `PAGE`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from asr.console import Table
from asr.errors import UserError
from asr.experiment.results import Results
from asr.files import check_writable, write_text
from asr.report.drawing import Drawing, Item, Place, drawn, once, per_split
from asr.report.error_browser import browse
from asr.report.figure import Figure, export
from asr.report.figures import accuracy, attention, benchmark, budgets, curves, layers
from asr.report.figures import paying as paying_figure
from asr.report.findings import Finding, findings
from asr.report.html import numbered, render
from asr.report.options import ReportOptions
from asr.report.protocol import heading, protocol_line, protocol_words, settings
from asr.report.provenance import of_results
from asr.report.tables import benchmark as benchmark_tables
from asr.report.tables import (
    costs,
    differences,
    exchange,
    heard,
    outcome,
    paying,
    rates,
    scores,
    search,
    seeds,
)
from asr.report.words import conditions_words
from asr.training.options import recipe_module

FILE = "report.html"


def _of_recipe(results: Results) -> Item | None:
    """Return the recipe's own figure; None if it has none."""
    module = recipe_module(results.recipe, "figure")
    return module.figure(results) if module else None


PAGE: tuple[Drawing, ...] = (
    once(accuracy.figure),
    once(accuracy.divergence),
    per_split(layers.figure),
    once(outcome.table),
    once(paying_figure.figure),
    once(paying.table),
    per_split(scores.table, scores.ratios, scores.by_layer, scores.steps),
    per_split(differences.table, differences.pairs),
    per_split(exchange.table, exchange.changes),
    once(costs.table),
    once(seeds.table),
    once(rates.table),
    once(search.table),
    once(budgets.figure),
    once(curves.figure),
    once(heard.table),
    once(benchmark.figure),
    lambda results, _: benchmark_tables.tables(results),
    benchmark.beside,
    once(_of_recipe),
    attention.maps,
)


def write_report(results: Results, folder: Path, options: ReportOptions | None = None) -> Path:
    """Write `report.html`, `results.md` (the tables in Markdown) and `figures/` into a folder.

    Args:
        results: what was measured.
        folder: folder of results.json, the base of the paths in the results.
        options: options of the report; None: the defaults.

    Returns:
        Path of the page.

    Raises:
        UserError: a metric, benchmark or utterance named in the options cannot be used.
    """
    options = options or ReportOptions()
    check_writable(folder / FILE)
    if options.metric:
        if options.metric not in results.metrics():
            found = ", ".join(results.metrics()) or "none"
            raise UserError(f"metric={options.metric}: expected a measured error rate: {found}")
        results = replace(results, protocol=results.protocol | {"metric": options.metric})
    body = list(drawn(results, PAGE, Place(folder, options)))
    files = _export(results, body, folder / "figures") if options.static else {}
    write_text(markdown(item for item in body if isinstance(item, Table)), folder / "results.md")
    errors = browse(results, folder, options.audio)
    return write_page(results, body, folder, findings(results), errors, files, options.refresh)


def write_page(
    results: Results,
    body: Sequence[Item],
    folder: Path,
    findings: Sequence[Finding],
    errors: dict[str, Any] | None = None,
    files: dict[str, list[Path]] | None = None,
    refresh: int = 0,
) -> Path:
    """Write `report.html` and return its path.

    Args:
        results: what was measured.
        body: figures and tables in page order.
        folder: where to write.
        findings: findings at the top of the page.
        errors: data of the error browser, if there is one.
        files: exported files by key of the figure.
        refresh: seconds after which a browser loads the page again; 0: never.
    """
    created = datetime.fromisoformat(results.created)
    words = " ".join(results.command[:2]) or "asr report"
    html = render(
        body,
        files or {},
        [x.attention for x in results.candidates] + results.variants(),
        {"errors": errors},
        reload=refresh,
        heading=heading(results),
        eyebrow=f"{words} · {created:%Y-%m-%d %H:%M} UTC",
        source=of_results(results),
        sections=_sections(body, results, errors),
        findings=findings,
        protocol_line=protocol_line(results),
        protocol=protocol_words(results),
        failures=results.failures,
        errors=errors,
        candidates=results.candidates if len(results.candidates) > 1 else [],
        data=results.data,
        conditions=[(conditions_words(split, x), x.busy()) for split, x in results.conditions.items()],
        settings=list(settings(results.protocol)),
        environment=list(settings(results.environment)),
        commands=[x.command for x in results.trainings if x.command]
        + [x.command for x in results.evaluations if x.command],
    )
    write_text(html, folder / FILE)
    return folder / FILE


def markdown(tables: Iterable[Table]) -> str:
    """Return tables in Markdown, each with its title above."""
    return "\n".join(f"{table.title}\n\n{table.markdown()}\n" for table in tables)


def _export(results: Results, body: Sequence[Item], folder: Path) -> dict[str, list[Path]]:
    """Write all figures as files, remove those of an earlier page, and return the new ones by key."""
    source = of_results(results)
    files = {
        item.key: export(item, folder, source, number)
        for number, item in numbered(body)
        if isinstance(item, Figure)
    }
    for stale in set(folder.glob("figure-*.*")).difference(*files.values()):
        stale.unlink()
    return files


def _sections(body: Sequence[Item], results: Results, errors: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return anchor and title of every link; sections with one label get one link, to the first of them."""
    sections = [("summary", "Summary")]
    if results.failures:
        sections.append(("failures", "Failed"))
    named: dict[str, str] = {}
    for item in body:
        named.setdefault(item.label, item.key)
    sections += [(key, label) for label, key in named.items()]
    if errors:
        sections.append(("errors", "Errors"))
    return [*sections, ("protocol", "Protocol")]
