"""Colours and shapes of mechanisms for all figures and tables, in a light and a dark theme."""

import colorsys
import math
import re
from dataclasses import dataclass
from typing import Any

from asr.attention import MECHANISMS, own
from asr.config.names import split_name, split_source
from asr.experiment.variant import Variant

VEGA_LITE = "6.4"  # version that altair writes and vl-convert renders
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Look:
    """Appearance of a family of mechanisms.

    Attributes:
        light: colour on a light background, contrast at least 3 : 1.
        dark: colour on a dark background, contrast at least 3 : 1.
        shape: SVG path, so that colour is not the only distinction.
    """

    light: str
    dark: str
    shape: str


SHAPES = {  # SVG paths within [−1, 1] × [−1, 1]
    "circle": "M.85,0A.85,.85,0,1,1,-.85,0A.85,.85,0,1,1,.85,0Z",
    "diamond": "M0,-1L1,0L0,1L-1,0Z",
    "hexagon": "M-.5,-.9H.5L1,0L.5,.9H-.5L-1,0Z",
    "square": "M-.8,-.8H.8V.8H-.8Z",
    "triangle-up": "M0,-.9L.95,.75H-.95Z",
    "triangle-down": "M0,.9L.95,-.75H-.95Z",
    "triangle-right": "M.9,0L-.75,.95V-.95Z",
    "triangle-left": "M-.9,0L.75,.95V-.95Z",
    "hourglass": "M-.8,-.9H.8L-.8,.9H.8Z",
    "bow-tie": "M-.9,-.8V.8L.9,-.8V.8Z",
    "star": "M0,-1L.25,-.34L.95,-.31L.40,.13L.59,.81L0,.42L-.59,.81L-.40,.13L-.95,-.31L-.25,-.34Z",
    "saltire": "M-.95,-.5L-.5,-.95L0,-.45L.5,-.95L.95,-.5L.45,0L.95,.5L.5,.95L0,.45L-.5,.95L-.95,.5L-.45,0Z",
    "pentagon": "M0,-.95L.95,-.25L.6,.85H-.6L-.95,-.25Z",
    "bar": "M-.95,-.6H.95V.6H-.95Z",
    "cross": "M-.35,-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
}

# Based on Okabe and Ito's palette for colour-blind readers; darker on light, lighter on dark backgrounds.
# Legends have this order.
CHOSEN: dict[str, Look] = {
    "full": Look("#4d4d4d", "#c8ccd2", SHAPES["circle"]),
    "i-clustered": Look("#0068a8", "#5db2f0", SHAPES["diamond"]),
    "near": Look("#c2185b", "#ff80ab", SHAPES["hexagon"]),
    "clustered": Look("#00835f", "#35c79d", SHAPES["square"]),
    "lsh": Look("#c65200", "#ff944d", SHAPES["triangle-up"]),
    "shared-full": Look("#8a6a00", "#e3bb4a", SHAPES["triangle-down"]),
    "oracle-top": Look("#b0508a", "#ea9cc8", SHAPES["cross"]),
    "local": Look("#007a8c", "#45c4d8", SHAPES["hourglass"]),
    "linear": Look("#7a4a1e", "#cf9f6b", SHAPES["star"]),
    "cast": Look("#6448b4", "#ab97f2", SHAPES["triangle-right"]),
    "agglomerative": Look("#8a1c3c", "#e5738c", SHAPES["triangle-left"]),
    "summary": Look("#5a7400", "#a9c93e", SHAPES["bow-tie"]),
    "hyper": Look("#b01fc0", "#ea8bf5", SHAPES["saltire"]),
}
OTHER = Look("#6b7280", "#9aa4b2", SHAPES["circle"])
BY_LAYER, PROGRAMS = "by layer", "other programs"  # several mechanisms in a model; peers


def further_look(number: int) -> Look:
    """Return the look of a mechanism that isn't in `CHOSEN`: a star of six points or more.

    Hues are a golden angle apart, so that no two are close, and begin in the widest gap between the hues of
    `CHOSEN`. At these lightnesses, every hue has a contrast of at least 3 : 1.

    Args:
        number: number of the mechanism, from 0, counting only those without a look in `CHOSEN`.
    """
    hue = (0.32 + number * (math.sqrt(5) - 1) / 2) % 1
    light, dark = (
        "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, 0.7))
        for lightness in (0.32, 0.7)
    )
    points = number + 6
    corners = [
        f"{size * math.sin(math.pi * i / points):.2f},{-size * math.cos(math.pi * i / points):.2f}"
        for i, size in enumerate([1, 0.5] * points)
    ]
    return Look(light, dark, f"M{'L'.join(corners)}Z")


FURTHER = [name for name in MECHANISMS if name not in CHOSEN]
FAMILIES = CHOSEN | {name: further_look(number) for number, name in enumerate(FURTHER)}
FAMILIES |= {  # last, because legends have this order
    BY_LAYER: Look("#9a2b00", "#ffb38a", SHAPES["pentagon"]),
    PROGRAMS: Look("#5f6b85", "#a3b0cc", SHAPES["bar"]),
}
_drawn: dict[str, Look] = {}  # families from outside this package, in the order of first use
DASHES: tuple[list[int], ...] = ([1, 0], [6, 3], [2, 2], [9, 3, 2, 3], [12, 4], [4, 2, 1, 2])

# Charts refer to colours by these tokens; page and export substitute their theme's colours.
INK = {  # light, dark
    "~ink": ("#1c2128", "#e6e9ee"),
    "~muted": ("#59626e", "#9aa4b2"),
    "~line": ("#e1e5ea", "#2b323c"),
    "~card": ("#ffffff", "#191e25"),
    "~page": ("#f5f6f8", "#0f1317"),
    "~accent": ("#0068a8", "#5db2f0"),
    "~heat": ("#0068a8", "#2f8fdc"),
    "~substitution": ("#7d5200", "#f0c36a"),
    "~substitution-paper": ("#fdf0d2", "#3a2f14"),
    "~deletion": ("#b3261e", "#ff9c93"),
    "~deletion-paper": ("#fde4e1", "#44201d"),
    "~insertion": ("#7a2f9b", "#d9a3f2"),
    "~insertion-paper": ("#f3e3fa", "#361f42"),
}
SEQUENCE = ["#00204d", "#31446b", "#666970", "#958f78", "#cab969", "#ffea46"]  # cividis


def family(attention: str) -> str:
    """Return the family of a mechanism.

    Example:
        >>> family("i-clustered-100:topk=16"), family("full@reference"), family("peer:clustered-25")
        ('i-clustered', 'full', 'clustered')
        >>> family("near-25*2,full*2"), family("peer:openvino-bf16")
        ('by layer', 'other programs')
        >>> family("nystrom:Nystrom-32:iterations=4")
        'nystrom:Nystrom'
    """
    return _parts(attention)[0]


def _parts(attention: str) -> tuple[str, str]:
    mechanism = Variant.read(attention.removeprefix("peer:")).attention.partition("@")[0]
    if "," in mechanism or "*" in mechanism:
        return BY_LAYER, ""
    name, number, _ = split_name(mechanism)
    if attention.startswith("peer:") and name not in MECHANISMS:
        return PROGRAMS, ""
    return name, number


def look(name: str) -> Look:
    """Return the look of a family; one from outside this package gets the next free look."""
    if name in FAMILIES:
        return FAMILIES[name]
    if name not in _drawn and (split_source(name)[0] or name in own.entry_points()):
        _drawn[name] = further_look(len(FURTHER) + len(_drawn))
    return _drawn.get(name, OTHER)


def token(name: str) -> str:
    """Return the token for a family's colour, which is also the name of a CSS variable."""
    return f"~{re.sub('[^a-zA-Z0-9_-]', '-', name)}" if look(name) is not OTHER else "~other"


def in_family_order(attentions: list[str]) -> list[str]:
    """Return mechanisms sorted by family, then by the number in the name."""

    def rank(attention: str) -> tuple[int, int, str]:
        name = family(attention)
        number = _parts(attention)[1]
        known = [*FAMILIES, *_drawn]
        place = known.index(name) if name in known else len(known)
        return place, int(number or 0), attention

    return sorted(attentions, key=rank)


def colours(dark: bool) -> dict[str, str]:
    """Return the colour of every token."""
    looks = FAMILIES | _drawn
    families = {token(name): entry.dark if dark else entry.light for name, entry in looks.items()}
    families["~other"] = OTHER.dark if dark else OTHER.light
    return families | {name: pair[dark] for name, pair in INK.items()}


def coloured(spec: Any, table: dict[str, str]) -> Any:
    """Return a chart specification with all colour tokens replaced according to `table`."""
    match spec:
        case dict():
            # The data stay as they are: a transcript may begin with a tilde.
            return {key: item if key == "values" else coloured(item, table) for key, item in spec.items()}
        case list():
            return [coloured(item, table) for item in spec]
        case str():
            return table.get(spec, spec)
    return spec


def css_references() -> dict[str, str]:
    """Return the CSS variable of every token, so that charts follow the page's theme, even in print."""
    return {name: f"var(--{name[1:]})" for name in colours(dark=False)}


def css_variables(dark: bool) -> str:
    """Return the colours as CSS custom properties: `--full: …; --ink: …`."""
    return " ".join(f"--{name[1:]}: {value};" for name, value in colours(dark).items())


def vega_config() -> dict[str, Any]:
    """Return Vega-Lite's `config` with colour tokens: muted axes, one typeface, no background."""
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": "~muted",
            "titleColor": "~ink",
            "gridColor": "~line",
            "domainColor": "~muted",
            "tickColor": "~line",
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": 500,
            "titlePadding": 8,
            "tickCount": 6,
        },
        "legend": {"labelColor": "~ink", "titleColor": "~ink", "labelFontSize": 11, "titleFontSize": 11},
        "title": {"color": "~ink", "fontSize": 13, "fontWeight": 600, "anchor": "start", "offset": 10},
        "text": {"color": "~ink"},
    }
