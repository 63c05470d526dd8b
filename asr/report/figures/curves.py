"""Loss and error rate during training, by epoch and by time."""

import math
from typing import Any

import altair as alt

from asr.console import counted
from asr.experiment.results import Results
from asr.report.figure import HOVER, Figure, Panel, Series, line_channels, lines_of, spec_of
from asr.report.words import clock_words, counterpart, metric_title
from asr.scoring.measures import is_share

HEIGHT = 240


def figure(results: Results) -> Figure | None:
    """Return the figure; None without validations.

    One axis is time; the other is epochs, or steps while the length of an epoch is unknown.
    """
    clock = results.clock
    rows = curve_rows(results, clock)
    if not rows:
        return None
    measure = results.dev_measure()
    error = metric_title(measure)
    trained = {row["series"] for row in rows}
    lines = lines_of({x.label: x.attention for x in results.candidates})
    lines = [line for line in lines if line.key in trained]
    times = f"training time, {clock_words(clock)} (s)"
    by = "epoch" if any(row["epoch"] for row in rows) else "step"
    axes = {by: f"{by}s", "time_s": times if any(row["time_s"] is not None for row in rows) else ""}
    measures = {"loss": "training loss", "dev_loss": "dev loss", "dev_error": f"dev {error}"}
    panels = [
        Panel("", _spec(rows, lines, x, x_title, y, y_title), HEIGHT)
        for y, y_title in measures.items()
        for x, x_title in axes.items()
        if x_title
    ]
    return Figure(
        key="figure-curves",
        label="Curves",
        title=f"Loss and {'error rate' if is_share(measure) else error} during training",
        caption=(
            "One point per validation, one line per seed. Training time includes the wait for data but not "
            "validation. Losses are per target token; the training loss is the mean since the previous "
            f"validation. {counterpart('Figure 7')}{_search_words(results)}"
        ),
        panels=panels,
        series=lines,
        log=("x", "y"),
        columns=2 if axes["time_s"] else 1,
    )


def curve_rows(results: Results, clock: str) -> list[dict[str, Any]]:
    """Return a row for every validation of every training, with error rates in percent."""
    scale = 100 if is_share(results.dev_measure()) else 1
    return [
        {
            "series": training.candidate,
            "seed": training.seed,
            "step": point.step,
            "epoch": point.epoch,
            "time_s": point.train_cpu_s if clock == "cpu" else point.train_s,
            "loss": _finite(point.loss),
            "dev_loss": _finite(point.dev_loss),
            "dev_error": _finite(scale * point.dev_error),
        }
        for training in results.trainings
        for point in training.curve
    ]


def _search_words(results: Results) -> str:
    """Return a sentence on the search used for dev error rates; empty for recipes without recordings."""
    if not results.data:
        return ""
    if results.dev_measure() != "dev_wer":
        return " Dev error rates are for greedy search."
    count = results.protocol.get("training", {}).get("select.utterances")
    number = counted(count, "utterance") if count else "utterances"
    return f" Dev WER is for beam search on {number} drawn from the dev set."


def _finite(value: float) -> float | None:
    """Return a finite number; otherwise None, a gap in the curve."""
    # JSON has no NaN: after a training that diverged, no browser could draw the page.
    return value if math.isfinite(value) else None


def _spec(
    rows: list[dict[str, Any]], lines: list[Series], x: str, x_title: str, y: str, y_title: str
) -> dict[str, Any]:
    color, dashes = line_channels(lines)
    several = len({(row["series"], row["seed"]) for row in rows}) > len(lines)
    tooltip = [
        alt.Tooltip("series:N", title="model"),
        alt.Tooltip("seed:N"),
        alt.Tooltip("step:Q"),
        alt.Tooltip("epoch:Q", format=".2f"),
        alt.Tooltip(f"{y}:Q", title=y_title, format=".4g"),
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=alt.Scale(zero=False, nice=False)),
        y=alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=False)),
        color=color,
        detail="seed:N",
    )
    drawn = base.mark_line(strokeWidth=1.8, opacity=0.6 if several else 0.85).encode(strokeDash=dashes)
    dots = base.mark_circle(size=9, opacity=0.7)
    hover = base.mark_point(size=60, opacity=0).encode(tooltip=tooltip).properties(name=HOVER)
    return spec_of(alt.layer(drawn, dots, hover))
