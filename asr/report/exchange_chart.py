"""What an exchanged attention costs in accuracy against what it saves in time."""

from collections.abc import Iterator
from typing import Any

import altair as alt

from asr.approximation.run import TaskResult
from asr.approximation.tables import PERCENT, words
from asr.report import theme
from asr.report.figure import Figure, Panel, Series, spec_of
from asr.report.provenance import of_environment

DIVERGENCE = "KL"
WIDE = 20  # ratio of highest and lowest score from which an axis is logarithmic
LEAST = 1e-3  # nats; a logarithmic axis has no zero, the divergence of full attention from itself


def figures(result: TaskResult, record: dict[str, Any]) -> Iterator[Figure]:
    """Yield a figure for each main measure, a point per mechanism; none without times relative to a baseline.

    Args:
        result: results of the task.
        record: content of `results.json`, for the provenance.
    """
    rows = [row for row in result.rows if row.time_ratio is not None]
    first = next(iter(result.rows[0].scores))
    measures = [name for name in (DIVERGENCE, first) if name in result.rows[0].scores] if rows else []
    for measure in measures:
        scale = f" {DIVERGENCE} below {LEAST:g} nats is drawn there." if measure == DIVERGENCE else ""
        yield Figure(
            key=f"exchange-{result.task}" + (f"-{measure}" if len(measures) > 1 else ""),
            label=f"Cost, {measure}",
            title=f"{measure} of {result.task} against the time of the {result.timed}",
            caption=f"Time relative to {result.baseline}; bars are 95 % intervals.{scale}",
            panels=[Panel("", _spec(result, measure))],
            provenance=of_environment(record["environment"], "", str(record["options"]["data"])),
            series=[Series(row.attention, theme.family(row.attention)) for row in rows],
        )


def _spec(result: TaskResult, measure: str) -> dict[str, Any]:
    scale, least = (100 if measure in PERCENT else 1), (LEAST if measure == DIVERGENCE else None)
    values = []
    for row in result.rows:
        score = row.scores[measure]
        ends = [score.value, score.low, score.high]
        value, low, high = (x if x is None else scale * max(x, least or x) for x in ends)
        entry = {"series": row.attention, "time": row.time_ratio, "value": value, "low": low, "high": high}
        values.append(entry | {"score": words(score, measure)})
    names = [row.attention for row in result.rows]
    looks = [theme.look(theme.family(name)) for name in names]
    colours = alt.Scale(domain=names, range=[theme.token(theme.family(name)) for name in names])
    shapes = alt.Scale(domain=names, range=[look.shape for look in looks])
    legend = alt.Legend(title=None, orient="right", symbolOpacity=1)
    color = alt.Color("series:N", scale=colours, legend=legend)
    scores = [row.scores[measure] for row in result.rows]
    lowest = min(score.value if score.low is None else score.low for score in scores)
    wide = 0 < WIDE * lowest < max(score.value for score in scores)
    y_scale = alt.Scale(type="log") if least or wide else alt.Scale(zero=False)
    title = f"{measure} (%)" if measure in PERCENT else f"{measure} (nats)" if least else measure
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("time:Q", title=f"time / {result.baseline}", scale=alt.Scale(zero=False)),
        y=alt.Y("value:Q", title=title, scale=y_scale),
        color=color,
    )
    shown = [alt.Tooltip(f"{name}:N") for name in ("series", "score")]
    bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.5, opacity=0.7)
    bars = bars.encode(y=alt.Y("low:Q", title=title, scale=y_scale), y2="high:Q")
    points = base.mark_point(size=70, filled=True, opacity=1).encode(
        shape=alt.Shape("series:N", scale=shapes, legend=legend),
        tooltip=[*shown, alt.Tooltip("time:Q", format=".3f")],
    )
    labels = base.mark_text(align="left", dx=7, fontSize=10, color="~ink").encode(
        text="series:N", color=alt.value("~ink")
    )
    return spec_of(alt.layer(bars, points, labels))
