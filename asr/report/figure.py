"""A figure of the report: panels, legend, provenance, and static export."""

import base64
import io
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from asr.errors import UserError
from asr.files import atomic_binary, write_bytes, write_text
from asr.report import theme

STATIC_WIDTH, STATIC_HEIGHT = 420, 280  # size of each of several panels, pixels
ALONE_WIDTH = 600  # width of a single panel, pixels
HOVER = "hover"  # name of an invisible layer with tooltips
# Vega runs in V8, which reserves 64 GiB of virtual memory and ends the process if it can't.
ADDRESS_SPACE = 72 << 30


@dataclass(frozen=True)
class Series:
    """A legend entry that shows or hides a series.

    Attributes:
        key: displayed name, and the value of the field `series` in the panels' data.
        family: mechanism family, for the colour.
        dash: index into `theme.DASHES` for a line; None for a point.
        hollow: whether the point is hollow.
        shown: whether the series is visible at first and in the static export.
    """

    key: str
    family: str
    dash: int | None = None
    hollow: bool = False
    shown: bool = True


@dataclass(frozen=True)
class Panel:
    """One chart of a figure.

    Attributes:
        title: heading above the chart; may be empty.
        spec: Vega-Lite specification with colour tokens (see `theme`), without size.
        height: height in pixels.
        width: width in pixels; None fills the column.
    """

    title: str
    spec: dict[str, Any]
    height: int = STATIC_HEIGHT
    width: int | None = None


@dataclass(frozen=True)
class Provenance:
    """Origin of a figure or table: command, commit, seeds, hardware and hashes of the data."""

    command: str
    commit: str
    seeds: str
    hardware: str
    data: str

    def line(self) -> str:
        """Return everything except the command in one line."""
        entries = (
            ("commit", self.commit),
            ("seeds", self.seeds),
            ("hardware", self.hardware),
            ("data", self.data),
        )
        return " · ".join(f"{name} {value}" for name, value in entries if value)


@dataclass(frozen=True)
class Figure:
    """A figure, under a heading of its own; the page numbers it.

    Attributes:
        key: anchor and file name, e.g. `figure-accuracy`.
        label: short name in the page's navigation, e.g. `Accuracy`.
        title: heading.
        caption: how to read the figure.
        panels: charts, in rows of two if there is room.
        series: entries of the legend.
        log: axes that can be switched between linear and logarithmic: `x`, `y`.
        log_at_first: axes that are logarithmic at first.
        columns: panels per row in the static export.
        provenance: origin of the data, if different from the page's.
    """

    key: str
    label: str
    title: str
    caption: str
    panels: list[Panel]
    series: list[Series] = field(default_factory=list)
    log: tuple[str, ...] = ()
    log_at_first: tuple[str, ...] = ()
    columns: int = 2
    provenance: Provenance | None = None


def lines_of(mechanisms: dict[str, str]) -> list[Series]:
    """Return a line for each entry {key: mechanism}; those of a family share a colour but not the dashes."""
    seen: Counter[str] = Counter()
    lines = []
    for key, mechanism in mechanisms.items():
        family = theme.family(mechanism)
        lines.append(Series(key, family, dash=seen[family] % len(theme.DASHES)))
        seen[family] += 1
    return lines


def line_channels(lines: list[Series]) -> tuple[alt.Color, alt.StrokeDash]:
    """Return colours and dashes of lines, with a legend for the static export."""
    keys = [line.key for line in lines]
    colours = alt.Scale(domain=keys, range=[theme.token(line.family) for line in lines])
    dashes = alt.Scale(domain=keys, range=[theme.DASHES[line.dash or 0] for line in lines])
    legend = alt.Legend(
        title=None, orient="right", symbolType="stroke", symbolSize=300, symbolStrokeWidth=2, symbolOpacity=1
    )
    color = alt.Color("series:N", scale=colours, legend=legend)
    return color, alt.StrokeDash("series:N", scale=dashes, legend=legend)


def line_chart(
    rows: list[dict[str, Any]],
    lines: list[Series],
    x: alt.X,
    y: alt.Y,
    tooltip: Sequence[str | alt.Tooltip],
    *further: alt.Chart,
) -> dict[str, Any]:
    """Return lines with points, and bars from `low` to `high` where rows have them, as a specification.

    Args:
        rows: data; the field `series` names the line.
        lines: legend.
        x, y: axes.
        tooltip: fields that pointing at a point shows, besides the name of its line.
        further: charts below the lines.
    """
    color, dashes = line_channels(lines)
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=color)
    bars = (
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.5, opacity=0.6)
        .encode(y=alt.Y("low:Q", title=y["title"]), y2="high:Q")
    )
    shown = [alt.Tooltip("series:N", title="system"), *tooltip]
    points = base.mark_point(size=45, filled=True, opacity=1).encode(tooltip=shown)
    drawn = base.mark_line(strokeWidth=1.8).encode(strokeDash=dashes)
    return spec_of(alt.layer(*further, *([bars] if any("low" in row for row in rows) else []), drawn, points))


def spec_of(chart: alt.Chart | alt.LayerChart | alt.FacetChart) -> dict[str, Any]:
    """Return a chart as a Vega-Lite specification with inline data, checked against the schema."""
    with alt.data_transformers.enable("default", max_rows=None, consolidate_datasets=False):
        spec: dict[str, Any] = chart.to_dict()
    for name in ("$schema", "config"):
        spec.pop(name, None)
    return spec


def page_panel(figure: Figure, panel: Panel) -> dict[str, Any]:
    """Return a panel's complete specification, which the page's script draws.

    The script sets the signal `hidden` to the list of hidden series. Screen readers read the description.
    """
    spec = theme.coloured(panel.spec, theme.css_references())
    shown = {"filter": "indexof(hidden, datum.series) < 0"}
    return {
        "title": panel.title,
        "width": panel.width,
        "height": panel.height,
        "spec": {
            "$schema": f"https://vega.github.io/schema/vega-lite/v{theme.VEGA_LITE.split('.')[0]}.json",
            "description": ": ".join(filter(None, [figure.title, panel.title])),
            **spec,
            "transform": [shown, *spec.get("transform", [])],
            "params": [*spec.get("params", []), {"name": "hidden", "value": []}],
        },
    }


def static_spec(figure: Figure) -> dict[str, Any]:
    """Return all panels of a figure as one chart on a white background, with Vega's own legend."""
    width = ALONE_WIDTH if len(figure.panels) == 1 else STATIC_WIDTH
    hidden = [series.key for series in figure.series if not series.shown]
    shown = {"filter": {"not": {"field": "series", "oneOf": hidden}}}
    params: dict[str, Any] = {}
    panels = []
    for panel in figure.panels:
        spec = {**panel.spec, "width": panel.width or width, "height": panel.height}
        spec["transform"] = [shown, *spec.get("transform", [])]
        if panel.title:
            spec["title"] = panel.title
        if "layer" in spec:
            spec["layer"] = [layer for layer in spec["layer"] if layer.get("name") != HOVER]
        # Vega-Lite requires params at the top level.
        params |= {param["name"]: param for param in spec.pop("params", [])}
        panels.append(spec)
    joined = {
        "concat": panels,
        "columns": figure.columns,
        "params": list(params.values()),
        "config": {**theme.vega_config(), "background": "#ffffff"},
        "padding": 8,
    }
    coloured: dict[str, Any] = theme.coloured(joined, theme.colours(dark=False))
    return coloured


def _check_address_space(path: Path) -> None:
    if sys.platform == "win32":  # Windows has no such limit
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
        raise UserError(
            f"{path}: drawing reserves {ADDRESS_SPACE >> 30} GiB of virtual memory, but `ulimit -v` "
            f"allows {limit / 2**30:.1f} GiB; the results are kept"
        )


def export(figure: Figure, folder: Path, source: Provenance | None = None, number: str = "") -> list[Path]:
    """Write `<key>.png` (double resolution, 256 colours), `<key>.pdf` (vector) and `<key>.txt`.

    The text file holds caption and provenance; the PNG contains them too, as metadata.

    Args:
        figure: what to draw.
        folder: where to write.
        source: origin of the data if the figure has no `provenance`.
        number: number of the figure on its page, e.g. `Figure 3`.

    Raises:
        UserError: the limit on virtual memory is too low for drawing.
    """
    png, pdf, caption = (folder / f"{figure.key}.{kind}" for kind in ("png", "pdf", "txt"))
    _check_address_space(png)
    spec = json.dumps(static_spec(figure))
    drawn = Image.open(io.BytesIO(vl_convert.vegalite_to_png(spec, vl_version=theme.VEGA_LITE, scale=2)))
    text = ". ".join(filter(None, [number, figure.title, figure.caption])) + "\n"
    if source := figure.provenance or source:
        text += f"{source.line()}\n{source.command}\n"
    about = PngInfo()
    about.add_itxt("Description", text)
    reduced = drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    with atomic_binary(png) as file:
        reduced.save(file, "PNG", optimize=True, pnginfo=about)
    write_bytes(vl_convert.vegalite_to_pdf(spec, vl_version=theme.VEGA_LITE), pdf)
    write_text(text, caption)
    return [png, pdf, caption]


def data_uri(content: bytes, media: str) -> str:
    """Return a file as a data URI; `media` is its type, e.g. `image/png`."""
    return f"data:{media};base64,{base64.b64encode(content).decode()}"
