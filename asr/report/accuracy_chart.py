"""Figure 1: error rate against the time of a full forward pass, with the Pareto front."""

from itertools import pairwise
from typing import Any, Literal

import altair as alt

from asr.compare.estimates import Estimate
from asr.compare.results import Results
from asr.compare.words import clock_words, mechanism_words, metric_words, percent, seconds
from asr.report import theme
from asr.report.figure import Figure, Panel, Provenance, Series, spec_of

EXCHANGED = "exchanged at evaluation"
Anchor = tuple[Literal["left", "right"], int, int]
ANCHORS: dict[str, Anchor] = {  # where a label stands: alignment and offset in pixels
    "right": ("left", 10, 1),
    "right below": ("left", 6, 13),
    "right above": ("left", 6, -12),
    "left": ("right", -10, 1),
    "left below": ("right", -6, 13),
    "left above": ("right", -6, -12),
}
HEIGHT = 400
WIDE, NARROW, TALL = 700.0, 230.0, 340.0  # pixels of a plot that the labels' places are worked out for
Box = tuple[float, float, float, float]  # left, top, right, bottom
LETTER, LINE = 6.3, 13.0  # size of a letter of the labels, pixels


def figure(results: Results, provenance: Provenance) -> Figure | None:
    """Return the figure, one panel a split; None where no forward pass was timed."""
    clock = results.clock
    metrics = {split: results.metrics(split)[0] for split in results.splits() if results.metrics(split)}
    of_split = {split: rows for split in metrics if (rows := points(results, split, metrics[split]))}
    if not of_split:
        return None
    named = " and ".join(dict.fromkeys(metric_words(metrics[split]) for split in of_split))
    panels = [
        Panel(
            f"Split {split}" if len(of_split) > 1 else "", _spec(rows, split, metrics[split], clock), HEIGHT
        )
        for split, rows in of_split.items()
    ]
    return Figure(
        key="figure-1",
        label="Figure 1",
        title=f"{named} against the time of a full forward pass",
        caption=(
            f"One point a model, run with the mechanism it was trained with; time is {clock_words(clock)} of "
            "encoder and CTC head over the whole split, the median of repeats interleaved over all models. "
            f"Bars: 95 % interval, {_interval_words(of_split)}. The dashed line is the Pareto front: "
            "no other model is both faster and more accurate."
        ),
        panels=panels,
        series=_series([row for rows in of_split.values() for row in rows]),
        log=("x", "y"),
        provenance=provenance,
    )


def points(results: Results, split: str, metric: str) -> list[dict[str, Any]]:
    """Return a row for every model and mechanism of evaluation; rates in percent, times in seconds."""
    rows: list[dict[str, Any]] = []
    front = results.front(split)
    for candidate in results.candidates:
        for attention in results.attentions():
            estimate = results.error_rate(candidate.label, split, metric, attention)
            time_s = results.forward_s(candidate.label, split, attention)
            if estimate is None or time_s is None:
                continue
            own = attention == candidate.attention
            family = theme.family(attention)
            rows.append(
                {
                    "series": family if own else EXCHANGED,
                    "family": family,
                    "own": own,
                    "front": own and candidate.label in front,
                    "model": candidate.label,
                    "run with": attention,
                    "layers": candidate.layers,
                    "size": mechanism_words(attention),
                    "time_s": time_s,
                    "rate": 100 * estimate.mean,
                    "time": seconds(time_s) + _repeats(results, candidate.label, split, attention),
                    "rate (95 %)": percent(estimate),
                    "seeds": estimate.count,
                    **_bounds(estimate),
                }
            )
    own_rows = [row for row in rows if row["own"]]
    for row, wide, narrow in zip(
        own_rows,
        place_labels(own_rows, own_rows, WIDE),
        place_labels(own_rows, [row for row in own_rows if row["front"]], NARROW),
        strict=True,
    ):
        row |= {"anchor": wide, "narrow": narrow}
    return rows


def place_labels(
    rows: list[dict[str, Any]], labelled: list[dict[str, Any]], plot_width: float
) -> list[str | None]:
    """Choose a side for points' labels that keeps them clear of points, the front and other labels.

    Greedy, in order of time.

    Args:
        rows: the points.
        labelled: those of them with a label.
        plot_width: in pixels.

    Returns:
        A key of `ANCHORS` for each point, None without a label.
    """
    if not rows:
        return []
    columns = _to_pixels([row["time_s"] for row in rows], plot_width)
    lines = [TALL - y for y in _to_pixels([row["rate"] for row in rows], TALL)]
    points = [(x - 6, y - 6, x + 6, y + 6) for x, y in zip(columns, lines, strict=True)]
    front = sorted((x, y) for row, x, y in zip(rows, columns, lines, strict=True) if row["front"])
    taken = [*points, *_steps(front)]
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


def _to_pixels(values: list[float], size: float) -> list[float]:
    low, high = min(values), max(values)
    return [size * (0.05 + 0.9 * ((value - low) / (high - low) if high > low else 0.5)) for value in values]


def _overlap(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, width) * max(0.0, height)


def _spec(rows: list[dict[str, Any]], split: str, metric: str, clock: str) -> dict[str, Any]:
    families = theme.in_family_order(list({row["family"]: None for row in rows}))
    error = f"{metric_words(metric)} (%)"
    title = f"forward pass over {split}, {clock_words(clock)} (s)"
    x = alt.X("time_s:Q", title=title, scale=alt.Scale(zero=False, padding=24))
    y = alt.Y("rate:Q", title=error, scale=alt.Scale(zero=False, padding=16))
    color = alt.Color(
        "family:N",
        scale=alt.Scale(domain=families, range=[theme.token(name) for name in families]),
        legend=alt.Legend(title=None, orient="top", symbolOpacity=1),
    )
    shape = alt.Shape(
        "family:N",
        scale=alt.Scale(domain=families, range=[theme.look(name).shape for name in families]),
        legend=alt.Legend(title=None, orient="top", symbolOpacity=1),
    )
    shown = ("model", "run with", "layers", "size", "rate (95 %)", "time", "seeds")
    tooltip = [alt.Tooltip(f"{name}:N") for name in shown]
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y)
    front = (
        base.transform_filter("datum.front")
        .mark_line(interpolate="step-after", strokeDash=[5, 4], strokeWidth=1.5, color="~muted")
        .encode(order=alt.Order("time_s:Q"))
    )
    intervals = (
        base.transform_filter("datum.own && isValid(datum.low)")
        .mark_rule(strokeWidth=1.5, opacity=0.7)
        .encode(y=alt.Y("low:Q", title=error), y2="high:Q", color=color)
    )
    exchanged = (
        base.transform_filter("!datum.own")
        .mark_point(size=55, filled=False, strokeWidth=1.2, opacity=0.75)
        .encode(color=color, shape=shape, tooltip=tooltip)
    )
    own = (
        base.transform_filter("datum.own")
        .mark_point(size=110, filled=True, opacity=1, stroke="~card", strokeWidth=1)
        .encode(color=color, shape=shape, tooltip=tooltip)
    )
    labels = [
        base.transform_filter(f"(labels ? datum.anchor : datum.narrow) === '{anchor}'")
        .mark_text(align=align, dx=dx, dy=dy, fontSize=11, color="~ink")
        .encode(text="model:N", tooltip=tooltip)
        for anchor, (align, dx, dy) in ANCHORS.items()
        if any(anchor in (row.get("anchor"), row.get("narrow")) for row in rows)
    ]
    # The page sets `labels` to false on a narrow screen, where the front alone is labelled.
    chart = alt.layer(front, intervals, exchanged, own, *labels).add_params(
        alt.param(name="labels", value=True)
    )
    return spec_of(chart)


def _repeats(results: Results, label: str, split: str, attention: str) -> str:
    """Return the range of the repeats that a wall-clock time is the median of."""
    found = [x.forward_repeats_s for x in results.evaluations_of(label, split, attention)]
    repeats = next(filter(None, found), [])
    if results.clock == "cpu" or len(repeats) < 2:
        return ""
    return f" ({seconds(min(repeats))} … {seconds(max(repeats))} in {len(repeats)} repeats)"


def _bounds(estimate: Estimate) -> dict[str, float | None]:
    # An interval over few seeds may reach below zero, which no logarithm knows.
    low = None if estimate.low is None else max(100 * estimate.low, 0.0)
    return {"low": low, "high": None if estimate.high is None else 100 * estimate.high}


def _interval_words(of_split: dict[str, list[dict[str, Any]]]) -> str:
    counts = {row["seeds"] for rows in of_split.values() for row in rows}
    if counts == {1}:
        return "bootstrap over utterances (one seed)"
    if 1 in counts:
        return "of the mean over seeds, or over utterances where there is one seed"
    return "of the mean over seeds"


def _series(rows: list[dict[str, Any]]) -> list[Series]:
    families = theme.in_family_order(list({row["family"]: None for row in rows if row["own"]}))
    entries = [Series(name, name, name) for name in families]
    if any(not row["own"] for row in rows):
        entries.append(Series(EXCHANGED, EXCHANGED, "other", hollow=True, shown=False))
    return entries
