"""A figure of the report: its panels, its legend, where it comes from, and its static pictures."""

import io
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from asr.files import atomic_binary, write_bytes, write_text
from asr.report import theme

STATIC_WIDTH, STATIC_HEIGHT = 420, 280  # of one panel of several, pixels
ALONE_WIDTH = 600  # of the only one
HOVER = "hover"  # name of a layer that is there for its tooltips alone
LINE_LEGEND = alt.Legend(
    title=None, orient="right", symbolType="stroke", symbolSize=300, symbolStrokeWidth=2, symbolOpacity=1
)


@dataclass(frozen=True)
class Series:
    """An entry of a legend that switches a series on and off.

    Attributes:
        key: value of the field `series` in the panels' data.
        label: what the reader sees.
        family: of the mechanism, for its colour.
        dash: index into `theme.DASHES` for a line; None for a point.
        hollow: whether the point is.
        shown: False: switched off at first, and not in the static picture.
    """

    key: str
    label: str
    family: str
    dash: int | None = None
    hollow: bool = False
    shown: bool = True


@dataclass(frozen=True)
class Panel:
    """One chart of a figure.

    Attributes:
        title: above it; may be empty.
        spec: Vega-Lite with colour tokens (see `theme`), without size.
        height: in pixels.
        width: in pixels; None fills the column.
    """

    title: str
    spec: dict[str, Any]
    height: int = STATIC_HEIGHT
    width: int | None = None


@dataclass(frozen=True)
class Provenance:
    """Where a figure or a table comes from: command, commit, seeds, hardware, hashes of the data."""

    command: str
    commit: str
    seeds: str
    hardware: str
    data: str

    def line(self) -> str:
        """Return all but the command in one line."""
        entries = (
            ("commit", self.commit),
            ("seeds", self.seeds),
            ("hardware", self.hardware),
            ("data", self.data),
        )
        return " · ".join(f"{name} {value}" for name, value in entries if value)


@dataclass(frozen=True)
class Figure:
    """What the page shows under one heading.

    Attributes:
        key: of its file and of its anchor, e.g. `figure-1`.
        label: e.g. `Figure 1`, the counterpart in the paper.
        title: what it shows.
        caption: how to read it.
        panels: in rows of two where there is room.
        series: the legend.
        log: axes that can be switched between linear and logarithmic: `x`, `y`.
        log_at_first: those that are logarithmic to begin with.
        provenance: where it comes from.
        columns: panels in a row of the static picture.
    """

    key: str
    label: str
    title: str
    caption: str
    panels: list[Panel]
    provenance: Provenance
    series: list[Series] = field(default_factory=list)
    log: tuple[str, ...] = ()
    log_at_first: tuple[str, ...] = ()
    columns: int = 2


def lines_of(entries: list[tuple[str, str]]) -> list[Series]:
    """Return a line for every (name, family); those of one family share a colour and differ in dashes."""
    seen: Counter[str] = Counter()
    lines = []
    for name, family in entries:
        lines.append(Series(name, name, family, dash=seen[family] % len(theme.DASHES)))
        seen[family] += 1
    return lines


def spec_of(chart: alt.Chart | alt.LayerChart | alt.FacetChart) -> dict[str, Any]:
    """Return a chart as a Vega-Lite specification, checked against its schema, data inline."""
    with alt.data_transformers.enable("default", max_rows=None, consolidate_datasets=False):
        spec: dict[str, Any] = chart.to_dict()
    for name in ("$schema", "config"):
        spec.pop(name, None)
    return spec


def interactive_spec(panel: Panel) -> dict[str, Any]:
    """Return a panel for the page: sized by its column, its legend left to the page.

    The page sets the signal `hidden` to the list of series that are switched off.
    """
    shown = {"filter": "indexof(hidden, datum.series) < 0"}
    spec = theme.coloured(_filtered(_without_legends(panel.spec), shown), theme.css_references())
    return {
        "$schema": f"https://vega.github.io/schema/vega-lite/v{theme.VEGA_LITE.split('.')[0]}.json",
        **spec,
        "params": [*spec.get("params", []), {"name": "hidden", "value": []}],
        "width": panel.width or "container",
        "height": panel.height,
        "autosize": {"type": "fit-x" if panel.width is None else "pad", "contains": "padding"},
    }


def static_spec(figure: Figure) -> dict[str, Any]:
    """Return all panels of a figure as one picture on white paper, with Vega's own legend."""
    width = ALONE_WIDTH if len(figure.panels) == 1 else STATIC_WIDTH
    hidden = [series.key for series in figure.series if not series.shown]
    panels = [
        {
            **_filtered(_visible(panel.spec), {"filter": {"not": {"field": "series", "oneOf": hidden}}}),
            "width": panel.width or width,
            "height": panel.height,
            **({"title": panel.title} if panel.title else {}),
        }
        for panel in figure.panels
    ]
    body = panels[0] if len(panels) == 1 else _side_by_side(panels, figure.columns)
    spec = {**body, "config": {**theme.vega_config(), "background": "#ffffff"}, "padding": 8}
    coloured: dict[str, Any] = theme.coloured(spec, theme.colours(dark=False))
    return coloured


def _side_by_side(panels: list[dict[str, Any]], columns: int) -> dict[str, Any]:
    """Join panels; their variables become those of the whole, for Vega-Lite knows none in a part."""
    variables = {variable["name"]: variable for panel in panels for variable in panel.get("params", [])}
    parts = [{key: value for key, value in panel.items() if key != "params"} for panel in panels]
    return {"concat": parts, "columns": columns, "params": list(variables.values())}


def export(figure: Figure, folder: Path) -> list[Path]:
    """Write `<key>.png` (twice the screen's resolution, 256 colours), `<key>.pdf` (vector) and `<key>.txt`.

    The text is the caption with the figure's provenance; the PNG has it among its metadata as well.
    """
    spec = json.dumps(static_spec(figure))
    png, pdf = folder / f"{figure.key}.png", folder / f"{figure.key}.pdf"
    drawn = Image.open(io.BytesIO(vl_convert.vegalite_to_png(spec, vl_version=theme.VEGA_LITE, scale=2)))
    text = caption_text(figure)
    about = PngInfo()
    about.add_itxt("Description", text)
    reduced = drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    with atomic_binary(png) as file:
        reduced.save(file, "PNG", optimize=True, pnginfo=about)
    write_bytes(vl_convert.vegalite_to_pdf(spec, vl_version=theme.VEGA_LITE), pdf)
    caption = folder / f"{figure.key}.txt"
    write_text(text, caption)
    return [png, pdf, caption]


def caption_text(figure: Figure) -> str:
    """Return what belongs below a figure: title, caption, where it comes from."""
    source = figure.provenance
    return f"{figure.label}. {figure.title}. {figure.caption}\n{source.line()}\n{source.command}\n"


def _visible(spec: dict[str, Any]) -> dict[str, Any]:
    if "layer" not in spec:
        return spec
    return {**spec, "layer": [layer for layer in spec["layer"] if layer.get("name") != HOVER]}


def _without_legends(spec: Any) -> Any:
    if isinstance(spec, list):
        return [_without_legends(item) for item in spec]
    if not isinstance(spec, dict):
        return spec
    kept = {key: value if key == "data" else _without_legends(value) for key, value in spec.items()}
    for channel in ("color", "stroke", "fill", "shape", "strokeDash"):
        encoding = kept.get("encoding", {})
        if channel in encoding and "field" in encoding[channel]:
            encoding[channel] = {**encoding[channel], "legend": None}
    return kept


def _filtered(spec: dict[str, Any], condition: dict[str, Any]) -> dict[str, Any]:
    """Add a filter wherever data come in."""
    kept = dict(spec)
    if "layer" in kept:
        kept["layer"] = [_filtered(layer, condition) for layer in kept["layer"]]
    if "data" in kept:
        kept["transform"] = [condition, *kept.get("transform", [])]
    return kept
