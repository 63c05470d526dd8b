"""Where the labels of points in a chart stand: beside them, clear of points, lines and other labels."""

import math
from collections.abc import Collection
from itertools import pairwise
from typing import Any, Literal

Anchor = tuple[Literal["left", "right"], int, int]
ANCHORS: dict[str, Anchor] = {  # where a label stands: alignment and offset in pixels
    "right": ("left", 10, 1),
    "right below": ("left", 6, 13),
    "right above": ("left", 6, -12),
    "left": ("right", -10, 1),
    "left below": ("right", -6, 13),
    "left above": ("right", -6, -12),
}
# Pixels of a plot that the labels' places are worked out for: alone, beside another, on a phone; its height.
WIDE, HALF, NARROW, TALL = 700.0, 490.0, 230.0, 340.0
Box = tuple[float, float, float, float]  # left, top, right, bottom
LETTER, LINE = 6.3, 13.0  # size of a letter of the labels, pixels


def place_labels(
    rows: list[dict[str, Any]],
    labelled: list[dict[str, Any]],
    plot_width: float,
    log: Collection[str] = (),
) -> list[str | None]:
    """Choose a side for points' labels that keeps them clear of points, the front and other labels.

    Greedy, in order of time.

    Args:
        rows: the points.
        labelled: those of them with a label.
        plot_width: in pixels.
        log: axes that are logarithmic.

    Returns:
        A key of `ANCHORS` for each point, None without a label.
    """
    if not rows:
        return []
    columns = _to_pixels([row["time_s"] for row in rows], plot_width, "x" in log)
    ends = [row["rate"] if row[end] is None else row[end] for end in ("low", "high") for row in rows]
    heights = _to_pixels([*(row["rate"] for row in rows), *ends], TALL, "y" in log)
    size = len(rows)
    lines, lows, highs = ([TALL - y for y in heights[i : i + size]] for i in (0, size, 2 * size))
    points = [(x - 6, y - 6, x + 6, y + 6) for x, y in zip(columns, lines, strict=True)]
    bars = [(x - 1, high, x + 1, low) for x, low, high in zip(columns, lows, highs, strict=True)]
    front = sorted((x, y) for row, x, y in zip(rows, columns, lines, strict=True) if row["front"])
    taken = [*points, *bars, *_steps(front)]
    chosen: list[str | None] = [None] * len(rows)
    for i in sorted(range(len(rows)), key=lambda i: columns[i]):
        if rows[i] not in labelled:
            continue
        width = LETTER * len(rows[i]["model"])
        best = ("right", float("inf"), points[i])
        for anchor, (align, dx, dy) in ANCHORS.items():
            left = columns[i] + dx - (width if align == "right" else 0.0)
            box = (left, lines[i] + dy - LINE / 2, left + width, lines[i] + dy + LINE / 2)
            outside = max(0.0, -box[0]) + max(0.0, box[2] - plot_width)
            cost = LINE * outside + sum(_overlap(box, other) for other in taken)
            if cost < best[1]:
                best = (anchor, cost, box)
        chosen[i] = best[0]
        taken.append(best[2])
    return chosen


def _steps(front: list[tuple[float, float]]) -> list[Box]:
    """Return boxes around the lines of the front: right at a point's height, then to the next one."""
    boxes = []
    for (x, y), (next_x, next_y) in pairwise(front):
        boxes += [(x, y - 2, next_x, y + 2), (next_x - 2, min(y, next_y), next_x + 2, max(y, next_y))]
    return boxes


def _to_pixels(values: list[float], size: float, log: bool) -> list[float]:
    values = [math.log(value) for value in values] if log else values
    low, high = min(values), max(values)
    return [size * (0.05 + 0.9 * ((value - low) / (high - low) if high > low else 0.5)) for value in values]


def _overlap(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, width) * max(0.0, height)
