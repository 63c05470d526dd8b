"""The report of a comparison: one HTML page without network access, and its figures as PNG and PDF."""

import base64
import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from asr.compare.results import Results
from asr.config import option
from asr.errors import UserError
from asr.files import write_text
from asr.report import (
    accuracy_chart,
    attention_chart,
    bench_chart,
    copy_chart,
    curves_chart,
    theme,
)
from asr.report.error_browser import browse
from asr.report.exchange_table import exchange_table
from asr.report.figure import Figure, Provenance, export, interactive_spec
from asr.report.findings import findings
from asr.report.protocol import protocol_line, readable_time, settings
from asr.report.provenance import of_results
from asr.report.tables import Table, cost_table, search_table

log = logging.getLogger(__name__)

NAME = "report.html"


@dataclass
class ReportOptions:
    """What goes into a report besides the results."""

    metric: str = option(
        "", help="error rate that heads tables and figures: per | wer | cer | official; empty: as compared"
    )
    bench: str = option("", help="bench.json of asr bench; empty: one in the folder or above it")
    copy: str = option("", help="folder of a masked-copy sweep; empty: copy/ in the folder or above it")
    audio: int = option(
        5, help="of each model's worst utterances so many can be played; 0: no audio in the page"
    )
    maps: bool = option(True, help="attention maps and approximation errors (loads a trained model)")
    utterance: str = option("", help="of the attention maps; empty: the one of median length in the split")
    layer: int = option(0, help="of the attention maps, 1 is the first; 0: the last")
    head: int = option(
        0, help="of the attention maps, 1 is the first; 0: the one with the most peaked weights"
    )
    static: bool = option(True, help="also write figures/*.png and *.pdf")


def write_report(results: Results, folder: Path, options: ReportOptions | None = None) -> Path:
    """Write `report.html` and `figures/` into a folder.

    Args:
        results: what to show.
        folder: of results.json, that the paths in the results are relative to.
        options: what else goes in.

    Returns:
        The page's path.

    Raises:
        UserError: a benchmark, a sweep or an utterance that the options name can't be used.
    """
    options = options or ReportOptions()
    if options.metric:
        results = _headed_by(results, options.metric)
    source = of_results(results)
    body = list(_body(results, folder, options, source))
    figures = [item for item in body if isinstance(item, Figure)]
    if options.static:
        written = {path for figure in figures for path in export(figure, folder / "figures")}
        for earlier in set((folder / "figures").glob("figure-*.*")) - written:
            earlier.unlink()
    path = folder / NAME
    html = _render(results, body, browse(results, folder, options.audio), source, options.static)
    write_text(html, path)
    return path


def _headed_by(results: Results, metric: str) -> Results:
    """Return results whose tables and figures are headed by another error rate.

    Raises:
        UserError: it wasn't measured.
    """
    if metric not in results.metrics():
        found = ", ".join(results.metrics()) or "none"
        raise UserError(f"metric={metric}: expected one that was measured, found {found}")
    return replace(results, protocol=results.protocol | {"metric": metric})


def _body(
    results: Results, folder: Path, options: ReportOptions, source: Provenance
) -> Iterator[Figure | Table]:
    """Yield figures and tables in the order of the page."""
    optional: list[Figure | Table | None] = [
        accuracy_chart.figure(results, source),
        cost_table(results),
        search_table(results),
        *(exchange_table(results, split) for split in results.splits()),
        curves_chart.figure(results, source),
    ]
    yield from (item for item in optional if item)
    yield from _unless_unasked(
        lambda place: [bench_chart.figure(place)], options.bench, beside(folder, "bench.json")
    )
    if results.recipe == "copy":
        yield from filter(None, [copy_chart.figure_of_results(results, source)])
    else:
        yield from _unless_unasked(
            lambda place: [copy_chart.figure(place)], options.copy, beside(folder, "copy")
        )
    if options.maps:
        named = any((options.utterance, options.layer, options.head))
        yield from _unless_unasked(
            lambda place: attention_chart.figures(
                results, place, source, options.utterance, options.layer, options.head
            ),
            str(folder) if named else "",
            folder,
        )


def beside(folder: Path, name: str) -> Path | None:
    """Find a name in a folder, its parent or its grandparent: `exp/bench.json` for `exp/compare/x`."""
    places = [place / name for place in (folder, *folder.resolve().parents[:2])]
    return next((place for place in places if place.exists()), None)


def _unless_unasked(draw: Callable[[Path], Iterable[Figure]], named: str, found: Path | None) -> list[Figure]:
    """Draw from what is named, or else from what is there.

    What a user named and can't be drawn is an error; what merely lies there is left out with a warning.
    """
    place = Path(named) if named else found
    if place is None:
        return []
    try:
        return list(draw(place))
    except UserError as error:
        if named:
            raise
        log.warning("report: a figure is left out: %s", error)
        return []


def _render(
    results: Results,
    body: list[Figure | Table],
    errors: dict[str, Any] | None,
    source: Provenance,
    static: bool,
) -> str:
    files = resources.files("asr.report") / "templates"
    library = _library()
    script = Markup((files / "report.js").read_text(encoding="utf-8"))
    for text in (library, script):
        if "</script" in text.lower() or "<!--" in text:
            raise RuntimeError(
                "a script of the page would end its own element: it must not hold </script or <!--"
            )
    figures = [item for item in body if isinstance(item, Figure)]
    environment = Environment(
        loader=PackageLoader("asr.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    heading = f"{results.recipe}: attention mechanisms compared"
    return environment.get_template("report.html.jinja").render(
        policy=_policy([library, script]),
        style=_style((files / "style.css").read_text(encoding="utf-8")),
        library=library,
        script=script,
        title=heading,
        heading=heading,
        created=readable_time(results.created),
        sections=_sections(body, results, errors),
        findings=findings(results),
        protocol_line=protocol_line(results),
        failures=results.failures,
        body=body,
        errors=errors,
        candidates=results.candidates,
        data=results.data,
        settings=list(settings(results.protocol)),
        environment=list(settings(results.environment)),
        commands=[
            command
            for command in [x.command for x in results.trainings] + [x.command for x in results.evaluations]
            if command
        ],
        source=source,
        static=static,
        colour=lambda name: f"var(--{theme.token(name)[1:]})",
        shape=lambda name: theme.SHAPE_PATHS[theme.look(name).shape],
        dashes=theme.DASHES,
        family=theme.family,
        page_data={
            "figures": {
                figure.key: {
                    "specs": [interactive_spec(panel) for panel in figure.panels],
                    "log": list(figure.log_at_first),
                }
                for figure in figures
            },
            "config": theme.coloured(theme.vega_config(), theme.css_references()),
            "errors": errors,
        },
    )


@functools.cache
def _library() -> Markup:
    """Return Vega, Vega-Lite and vega-embed as one script."""
    return Markup(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", theme.VEGA_LITE))


def _policy(scripts: list[Markup]) -> str:
    """Return a content security policy: these scripts and no other, nothing from the network."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
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
    """Return anchor and name of every section."""
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
