"""The report of a comparison: one self-contained HTML page, and its figures as PNG and PDF."""

import base64
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from asr.console import Table
from asr.errors import UserError
from asr.experiment.results import Results
from asr.files import check_writable, digest, write_text
from asr.report import accuracy_chart, attention_chart, bench_chart, budget_chart, curves_chart, theme
from asr.report.error_browser import browse
from asr.report.exchange_table import exchange_difference_table, exchange_table
from asr.report.figure import ALONE_WIDTH, STATIC_WIDTH, Figure, Provenance, data_uri, export, page_panel
from asr.report.findings import findings
from asr.report.options import ReportOptions
from asr.report.protocol import protocol_line, settings
from asr.report.provenance import of_results
from asr.report.summary import difference_table, pairs_table, rates_table
from asr.report.tables import cost_table, search_table, seeds_table
from asr.report.words import conditions_words
from asr.training.options import recipe_module

PAGE = "report.html"
MEDIA = {".png": "image/png", ".pdf": "application/pdf"}

log = logging.getLogger(__name__)


def write_report(results: Results, folder: Path, options: ReportOptions | None = None) -> Path:
    """Write `report.html`, `results.md` (the tables in Markdown) and `figures/` into a folder.

    Args:
        results: results of the comparison.
        folder: folder of results.json, the base of the paths in the results.
        options: further content; None: the defaults.

    Returns:
        Path of the page.

    Raises:
        UserError: a metric, benchmark or utterance named in the options cannot be used.
    """
    options = options or ReportOptions()
    check_writable(folder / PAGE)
    if options.metric:
        if options.metric not in results.metrics():
            found = ", ".join(results.metrics()) or "none"
            raise UserError(f"metric={options.metric}: expected a measured error rate: {found}")
        results = replace(results, protocol=results.protocol | {"metric": options.metric})
    source = of_results(results)
    body = list(_body(results, folder, options, source))
    figures = [item for item in body if isinstance(item, Figure)]
    files = {figure.key: export(figure, folder / "figures") for figure in figures if options.static}
    if options.static:
        for stale in set((folder / "figures").glob("figure-*.*")).difference(*files.values()):
            stale.unlink()
    write_text(markdown(item for item in body if isinstance(item, Table)), folder / "results.md")
    path = folder / PAGE
    html = _render(results, body, browse(results, folder, options.audio), source, files, options.refresh)
    write_text(html, path)
    return path


def markdown(tables: Iterable[Table]) -> str:
    """Return tables in Markdown, each below its title."""
    return "\n".join(f"{table.title}\n\n{table.markdown()}\n" for table in tables)


def _body(
    results: Results, folder: Path, options: ReportOptions, source: Provenance
) -> Iterator[Figure | Table]:
    """Yield figures and tables in page order."""
    optional: list[Figure | Table | None] = [
        accuracy_chart.figure(results, source),
        cost_table(results),
        seeds_table(results),
        rates_table(results),
        *(table(results, split) for split in results.splits() for table in (difference_table, pairs_table)),
        search_table(results),
        *(
            table(results, split)
            for split in results.splits()
            for table in (exchange_table, exchange_difference_table)
        ),
        budget_chart.figure(results, source),
        curves_chart.figure(results, source),
    ]
    yield from (item for item in optional if item)
    yield from _named_or_found(_bench_figure, options.bench, benchmarks_beside(folder))
    if own := recipe_module(results.recipe, "figure"):
        yield from filter(None, [own.figure(results, source)])
    named = any((options.utterance, options.layer, options.head))
    if options.maps and (named or results.data):
        yield from _named_or_found(
            lambda place: attention_chart.figures(
                results, place, source, options.utterance, options.layer, options.head
            ),
            str(folder) if named else "",
            [folder],
        )


def _bench_figure(place: Path) -> list[Figure]:
    found = bench_chart.figure(bench_chart.read_bench(place), place.stem)
    return [found] if found else []


def benchmarks_beside(folder: Path) -> list[Path]:
    """Find benchmarks in a folder, its parent or grandparent: `exp/bench*.json` for `exp/compare/x`."""
    places = (sorted(place.glob("bench*.json")) for place in (folder, *folder.resolve().parents[:2]))
    return next(filter(None, places), [])


def _named_or_found(
    draw: Callable[[Path], Iterable[Figure]], named: str, found: list[Path]
) -> Iterator[Figure]:
    """Yield the figures of a place that the user named, or else of those that were found.

    Unusable data raise an error if the user named them; otherwise the figure is skipped with a warning.
    """
    for place in [Path(named)] if named else found:
        try:
            figures = list(draw(place))
        except UserError as error:
            if named:
                raise
            log.warning("report: skipping a figure: %s", error)
            continue
        yield from figures


def _render(
    results: Results,
    body: list[Figure | Table],
    errors: dict[str, Any] | None,
    source: Provenance,
    exported: dict[str, list[Path]],
    reload: int,
) -> str:
    return render(
        "report.html.jinja",
        body,
        source,
        exported,
        [x.attention for x in results.candidates] + results.variants(),
        {"errors": errors},
        reload,
        heading=f"{results.recipe}: attention mechanisms compared",
        eyebrow=f"asr compare · {created_words(results.created)}",
        files="results.json and results.csv",
        sections=_sections(body, results, errors),
        findings=findings(results),
        protocol_line=protocol_line(results),
        failures=results.failures,
        errors=errors,
        candidates=results.candidates,
        data=results.data,
        conditions=[(conditions_words(split, x), x.busy()) for split, x in results.conditions.items()],
        settings=list(settings(results.protocol)),
        environment=list(settings(results.environment)),
        commands=[x.command for x in results.trainings if x.command]
        + [x.command for x in results.evaluations if x.command],
    )


def created_words(created: str) -> str:
    """Return an ISO 8601 date as text."""
    return f"{datetime.fromisoformat(created):%Y-%m-%d %H:%M} UTC"


def render(
    template: str,
    body: Sequence[Figure | Table],
    source: Provenance,
    exported: dict[str, list[Path]],
    attentions: list[str],
    script_data: dict[str, Any],
    reload: int = 0,
    **content: Any,
) -> str:
    """Return a page that needs no other file.

    Args:
        template: one that extends `page.html.jinja`.
        body: figures and tables in page order.
        source: provenance of the tables.
        exported: files of each figure, by key.
        attentions: mechanisms whose colours the page may use.
        script_data: further data for the page's script.
        reload: seconds after which a browser loads the page again; 0: never.
        content: what the template shows.
    """
    for name in attentions:
        theme.look(theme.family(name))  # before the style sheet, which lists all colours
    files = resources.files("asr.report") / "templates"
    library = _library()
    script = Markup((files / "report.js").read_text(encoding="utf-8"))
    for text in (library, script):
        if "</script" in text.lower() or "<!--" in text:
            raise RuntimeError("scripts in the page must not contain </script or <!--, which ends them")
    figures = [item for item in body if isinstance(item, Figure)]
    environment = Environment(
        loader=PackageLoader("asr.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        **content,
        reload=reload,
        policy=_policy([library, script]),
        style=_style((files / "style.css").read_text(encoding="utf-8")),
        library=library,
        script=script,
        body=body,
        source=source,
        # In the page itself, so that the buttons work in a copy of it.
        downloads={
            key: [
                (path, data_uri(path.read_bytes(), MEDIA[path.suffix]))
                for path in paths
                if path.suffix in MEDIA
            ]
            for key, paths in exported.items()
        },
        colour=lambda name: f"var(--{theme.token(name)[1:]})",
        shape=lambda name: theme.look(name).shape,
        dashes=theme.DASHES,
        family=theme.family,
        page_data={
            "figures": {
                figure.key: {
                    "panels": [page_panel(figure, panel) for panel in figure.panels],
                    "columns": figure.columns,
                    "log": list(figure.log_at_first),
                }
                for figure in figures
            },
            "config": theme.coloured(theme.vega_config(), theme.css_references()),
            "light": {f"--{name[1:]}": colour for name, colour in theme.colours(dark=False).items()},
            "widths": [ALONE_WIDTH, STATIC_WIDTH],
            **script_data,
        },
    )


@functools.cache
def _library() -> Markup:
    """Return Vega, Vega-Lite and vega-embed as one script."""
    return Markup(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", theme.VEGA_LITE))


def _policy(scripts: list[Markup]) -> str:
    """Return a content security policy that allows only these scripts and no network access."""
    hashes = [base64.b64encode(bytes.fromhex(digest(text, 64))).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{x}'" for x in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "media-src data:; base-uri 'none'; form-action 'none'"
    )


def _style(text: str) -> Markup:
    light, dark = theme.css_variables(dark=False), theme.css_variables(dark=True)
    text = text.replace("LIGHT_COLOURS", light).replace("DARK_COLOURS", dark)
    return Markup(text.replace("FONT", theme.FONT))


def _sections(
    body: list[Figure | Table], results: Results, errors: dict[str, Any] | None
) -> list[tuple[str, str]]:
    """Return anchor and title of every section."""
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
