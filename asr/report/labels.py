"""Places the labels of points in a chart: beside them, clear of points, lines and other labels."""

from collections.abc import Collection
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from asr.report.axes import extent

Anchor = tuple[Literal["left", "right"], int, int]
ANCHORS: dict[str, Anchor] = {  # alignment and offset in pixels
    "right": ("left", 10, 1),
    "right below": ("left", 6, 13),
    "right above": ("left", 6, -12),
    "left": ("right", -10, 1),
    "left below": ("right", -6, 13),
    "left above": ("right", -6, -12),
}
# Assumed size of a plot in pixels: width of a single one, of one of two in a row, on a phone; height.
WIDE, HALF, NARROW, TALL = 700.0, 490.0, 230.0, 340.0
Box = tuple[float, float, float, float]  # left, top, right, bottom
LETTER, LINE = 6.3, 13.0  # width and height of a letter, pixels
CLEAR = 0.1  # fraction of a label that may cover points and labels; if more would, only the tooltip shows it


def place_labels(
    rows: list[dict[str, Any]], labelled: list[dict[str, Any]], plot_width: float, log: Collection[str] = ()
) -> list[str | None]:
    """Choose the side of its point with the least overlap for each label, greedily, the front's line first.

    Args:
        rows: all points.
        labelled: points that have a label.
        plot_width: width of the plot in pixels.
        log: logarithmic axes.

    Returns:
        A key of `ANCHORS` for each point; None for points without a label, or without room for it.
    """
    if not rows:
        return []
    columns, firsts, lasts = _with_ends(rows, "time_s", ("time_low", "time_high"), plot_width, "x" in log)
    heights = _with_ends(rows, "rate", ("low", "high"), TALL, "y" in log)
    lines, lows, highs = ([TALL - y for y in values] for values in heights)
    points = [(x - 6, y - 6, x + 6, y + 6) for x, y in zip(columns, lines, strict=True)]
    bars = [(x - 1, high, x + 1, low) for x, low, high in zip(columns, lows, highs, strict=True)]
    bars += [(first, y - 1, last, y + 1) for first, y, last in zip(firsts, lines, lasts, strict=True)]
    front = sorted((x, y) for row, x, y in zip(rows, columns, lines, strict=True) if row["step"])
    taken = [*points, *bars, *_steps(front)]
    chosen: list[str | None] = [None] * len(rows)
    placed: list[Box] = []
    for i in sorted(range(len(rows)), key=lambda i: (not rows[i]["step"], not rows[i]["front"], columns[i])):
        if rows[i] not in labelled:
            continue
        width = LETTER * len(rows[i]["name"])
        best = ("right", float("inf"), points[i])
        for anchor, (align, dx, dy) in ANCHORS.items():
            left = columns[i] + dx - (width if align == "right" else 0.0)
            box = (left, lines[i] + dy - LINE / 2, left + width, lines[i] + dy + LINE / 2)
            outside = max(0.0, -box[0]) + max(0.0, box[2] - plot_width)
            cost = LINE * outside + sum(_overlap(box, other) for other in taken)
            if cost < best[1]:
                best = (anchor, cost, box)
        if sum(_overlap(best[2], box) for box in (*placed, *points)) > CLEAR * width * LINE:
            continue
        chosen[i] = best[0]
        placed.append(best[2])
        taken.append(best[2])
    return chosen


def _steps(front: list[tuple[float, float]]) -> list[Box]:
    """Return boxes around the lines of the front: horizontal from each point, then vertical to the next."""
    boxes = []
    for (x, y), (next_x, next_y) in pairwise(front):
        boxes += [(x, y - 2, next_x, y + 2), (next_x - 2, min(y, next_y), next_x + 2, max(y, next_y))]
    return boxes


def _with_ends(
    rows: list[dict[str, Any]], key: str, ends: tuple[str, str], size: float, log: bool
) -> list[list[float]]:
    """Return values, lower and upper ends of their bars in pixels; a missing end is the value itself."""
    values = np.array([[row[key] if row[x] is None else row[x] for row in rows] for x in (key, *ends)])
    low, high = (values.min(), values.max()) if log else extent(values.flatten().tolist())
    if log:
        values, low, high = np.log(values), np.log(low), np.log(high)
    shares = (values - low) / (high - low) if high > low else np.full_like(values, 0.5)
    return (size * (0.05 + 0.9 * shares)).tolist()


def _overlap(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, width) * max(0.0, height)
