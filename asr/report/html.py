"""Renders the page: one self-contained HTML file with charts, images and script."""

import base64
import functools
import mmap
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from asr.errors import UserError
from asr.files import digest
from asr.report import theme
from asr.report.drawing import Item
from asr.report.figure import ALONE_WIDTH, STATIC_WIDTH, Figure, data_uri, page_panel

# vl_convert ends the process where it gets no memory; it takes 240 MiB of addresses.
SCRIPT_MEMORY = 512 << 20
MEDIA = {".png": "image/png", ".pdf": "application/pdf"}


def numbered(body: Sequence[Item]) -> list[tuple[str, Item]]:
    """Return figures and tables with their numbers, `Figure 1`, `Table 1`, in page order."""
    counts = {"Figure": 0, "Table": 0}
    entries = []
    for item in body:
        kind = "Figure" if isinstance(item, Figure) else "Table"
        counts[kind] += 1
        entries.append((f"{kind} {counts[kind]}", item))
    return entries


def render(
    body: Sequence[Item],
    exported: dict[str, list[Path]],
    attentions: list[str],
    script_data: dict[str, Any],
    **content: Any,
) -> str:
    """Return a self-contained page.

    Args:
        body: figures and tables in page order.
        exported: exported files by key of the figure.
        attentions: mechanisms whose colours the page may use.
        script_data: further data for the page's script.
        content: further variables of the template.
    """
    for name in attentions:
        theme.look(theme.family(name))  # assigns colours before the style sheet lists them all
    files = resources.files("asr.report") / "templates"
    library = chart_library()
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
    return environment.get_template("page.html.jinja").render(
        **content,
        policy=_policy([library, script]),
        style=_style((files / "style.css").read_text(encoding="utf-8")),
        library=library,
        script=script,
        body=numbered(body),
        # Embedded, so that the buttons still work when the page is copied elsewhere.
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
def chart_library() -> Markup:
    """Return Vega, Vega-Lite and vega-embed as one script.

    Raises:
        UserError: the process may use too little memory to join them.
    """
    try:
        mmap.mmap(-1, SCRIPT_MEMORY).close()
    except OSError as error:
        raise UserError(
            f"report: its script needs {SCRIPT_MEMORY >> 20} MiB of memory: {error.strerror} "
            "(see ulimit -v); the results are kept"
        ) from error
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
