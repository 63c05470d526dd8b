"""What pays: each axis' fastest variant, its time divided by the baseline's, against the length of audio."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from asr.console import hours
from asr.experiment.paying import TOGETHER, Spot, spots
from asr.experiment.results import Results
from asr.report.figure import Figure, Panel, Series, line_chart
from asr.report.tables.paying import HEADS
from asr.report.words import MODEL_PASSES, clock_words

FAMILIES = {  # whose colours the axes have
    "attention": "i-clustered",
    "frames": "clustered",
    "precision": "lsh",
    "layers": "full",
    TOGETHER: "near",
}
HEIGHT = 320


def figure(results: Results) -> Figure | None:
    """Return the figure with one panel per pass; None unless the baseline was timed at two lengths."""
    of_pass: dict[str, list[dict[str, Any]]] = {}
    measured = [x for x in spots(results) if x.baseline_s is not None]
    for passes in dict.fromkeys(x.passes for x in measured):
        rows = _rows([x for x in measured if x.passes == passes])
        if len({row["audio, s"] for row in rows}) > 1:
            of_pass[passes] = rows
    if not of_pass:
        return None
    drawn = {row["series"] for rows in of_pass.values() for row in rows}
    lines = [Series(HEADS[axis], family, dash=0) for axis, family in FAMILIES.items() if HEADS[axis] in drawn]
    baseline = measured[0].baseline
    return Figure(
        key="figure-paying",
        label="What pays",
        title=f"{clock_words(results.clock)} divided by that of {baseline}, by length of audio",
        caption=(
            "The fastest variant of each axis at each length, with quartiles; lower is better. Pointing at a "
            f"point names its variant. The line at 1 is {baseline}."
        ),
        panels=[
            Panel(MODEL_PASSES[passes] if len(of_pass) > 1 else "", _spec(rows, lines, baseline), HEIGHT)
            for passes, rows in of_pass.items()
        ],
        series=lines,
        log=("x", "y"),
        log_at_first=("x", "y"),
    )


def _rows(spots: Sequence[Spot]) -> list[dict[str, Any]]:
    return [
        {
            "series": HEADS[axis],
            "audio, s": spot.audio_s,
            "audio": hours(spot.audio_s),
            "variant": rival.variant,
            "share": rival.ratio.value,
            "low": rival.ratio.low,
            "high": rival.ratio.high,
        }
        for spot in spots
        for axis, rival in spot.rivals.items()
        if rival.ratio and rival.close
    ]


def _spec(rows: list[dict[str, Any]], lines: list[Series], baseline: str) -> dict[str, Any]:
    lengths = {row["audio, s"]: row["audio"] for row in rows}
    words = " : ".join(f"datum.value == {s} ? '{text}'" for s, text in lengths.items()) + " : ''"
    x = alt.X(
        "audio, s:Q",
        title="audio",
        scale=alt.Scale(type="log", nice=False, padding=24),
        axis=alt.Axis(values=sorted(lengths), labelExpr=words),
    )
    y = alt.Y(
        "share:Q", title=f"time / {baseline}", scale=alt.Scale(type="log"), axis=alt.Axis(format=".2~g")
    )
    even = (
        alt.Chart(alt.Data(values=[{"one": 1}]))
        .mark_rule(color="~muted", strokeDash=[2, 2])
        .encode(y="one:Q")
    )
    return line_chart(rows, lines, x, y, ["audio:N", "variant:N", alt.Tooltip("share:Q", format=".2f")], even)
