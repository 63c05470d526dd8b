"""Figure 1: error rate against the time of a full forward pass, with the Pareto front."""

from collections.abc import Collection
from typing import Any

import altair as alt

from asr.console import duration, is_share
from asr.experiment.results import Results
from asr.report import theme
from asr.report.axes import extent, log_axis, log_ticks, needs_log
from asr.report.figure import Figure, Panel, Provenance, Series, spec_of
from asr.report.labels import ANCHORS, HALF, NARROW, WIDE, place_labels
from asr.report.words import (
    clock_words,
    duration_range,
    measured,
    mechanism_words,
    metric_title,
    metric_words,
)
from asr.scoring.estimates import Estimate

EXCHANGED = "exchanged at evaluation"
HEIGHT = 400


def figure(results: Results, provenance: Provenance) -> Figure | None:
    """Return the figure with one panel per split; None if no forward pass was timed."""
    clock = results.clock
    metrics = {split: results.metrics(split)[0] for split in results.splits() if results.metrics(split)}
    of_split = {split: rows for split in metrics if (rows := points(results, split, metrics[split]))}
    if not of_split:
        return None
    log = _log_axes([row for rows in of_split.values() for row in rows if row["own"]])
    for rows in of_split.values():
        _add_labels(rows, WIDE if len(of_split) == 1 else HALF, log)
    named = " and ".join(dict.fromkeys(metric_words(metrics[split]) for split in of_split))
    panels = [
        Panel(
            f"Split {split}" if len(of_split) > 1 else "",
            _spec(rows, split, metrics[split], clock, log),
            HEIGHT,
        )
        for split, rows in of_split.items()
    ]
    return Figure(
        key="figure-1",
        label="Figure 1",
        title=f"{named} against the time of a full forward pass",
        caption=(
            f"One point per model, run with the mechanism it was trained with. Time is {clock_words(clock)} "
            "of encoder and head over the whole split, the median of repeats. "
            f"Vertical bars: 95 % interval {_interval_words(of_split, results.unit)}. Horizontal bars: "
            "lowest to highest repeat. Dashed line: Pareto front; models with overlapping times count as "
            "equally fast."
        ),
        panels=panels,
        series=_series([row for rows in of_split.values() for row in rows]),
        log=("x", "y"),
        log_at_first=log,
        provenance=provenance,
    )


def points(results: Results, split: str, metric: str) -> list[dict[str, Any]]:
    """Return a row for every model and mechanism of evaluation, rates in percent, times in seconds."""
    rows: list[dict[str, Any]] = []
    scale = 100 if is_share(metric) else 1
    front = results.front(split)
    for candidate in results.candidates:
        for attention in results.variants():
            estimate = results.error_rate(candidate.label, split, metric, attention)
            time = results.forward_time(candidate.label, split, attention)
            if estimate is None or time is None:
                continue
            own = attention == candidate.attention
            family = theme.family(attention)
            repeats = f" ({duration_range(time)} in {time.count} repeats)" if time.count > 1 else ""
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
                    "time_s": time.value,
                    "time_low": time.low,
                    "time_high": time.high,
                    "rate": scale * estimate.value,
                    "time": f"{duration(time.value)}{repeats}",
                    "rate (95 %)": measured(estimate, metric),
                    "seeds": estimate.count,
                    # An interval over few seeds may reach below zero, where a logarithmic axis ends.
                    "low": None if estimate.low is None else max(scale * estimate.low, 0.0),
                    "high": None if estimate.high is None else scale * estimate.high,
                }
            )
    steps = _steps(results, split, metric)
    for row in rows:
        row["step"] = row["own"] and row["model"] in steps
    return rows


def _steps(results: Results, split: str, metric: str) -> list[str]:
    """Return the models that the line of the front connects: the most accurate among those level in time.

    A single one is left out, because it makes no line.
    """
    found: list[tuple[Estimate, float, str]] = []
    for label in results.front(split):  # the fastest first
        time, rate = results.forward_time(label, split), results.error_rate(label, split, metric)
        if time is None or rate is None:
            continue
        if found and found[-1][0].level_with(time):
            found[-1] = min(found[-1], (time, rate.value, label), key=lambda entry: entry[1])
        elif not found or rate.value < found[-1][1]:
            found.append((time, rate.value, label))
    return [label for *_, label in found] if len(found) > 1 else []


def _log_axes(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the axes that need a logarithmic scale because one slow or bad model would crowd all others."""
    rates = [value for row in rows for value in (row["rate"], row["low"]) if value is not None]
    values = {"x": [row["time_s"] for row in rows], "y": rates}
    return tuple(axis for axis, found in values.items() if found and needs_log(found))


def _add_labels(rows: list[dict[str, Any]], plot_width: float, log: Collection[str]) -> None:
    """Add label positions to the rows of models with their own mechanism, for wide and narrow screens."""
    own_rows = [row for row in rows if row["own"]]
    for row, wide, narrow in zip(
        own_rows,
        place_labels(own_rows, own_rows, plot_width, log),
        place_labels(own_rows, [row for row in own_rows if row["front"]], NARROW, log),
        strict=True,
    ):
        row |= {"anchor": wide, "narrow": narrow}


def _spec(
    rows: list[dict[str, Any]], split: str, metric: str, clock: str, log: Collection[str]
) -> dict[str, Any]:
    families = theme.in_family_order(list({row["family"]: None for row in rows}))
    trained = [name for name in families if any(row["own"] and row["family"] == name for row in rows)]
    legend = alt.Legend(title=None, orient="top", symbolOpacity=1, values=trained)
    error = metric_title(metric)
    title = f"forward pass over {split}, {clock_words(clock)} (s)"
    times = [value for row in rows for name in ("time_s", "time_low", "time_high") if (value := row[name])]
    across = _axis(times, 24, "x" in log)
    x = alt.X("time_s:Q", title=title, **across)
    bounds = [value for row in rows for name in ("rate", "low", "high") if (value := row[name]) is not None]
    y = alt.Y("rate:Q", title=error, **_axis(bounds, 16, "y" in log))
    color = alt.Color(
        "family:N",
        scale=alt.Scale(domain=families, range=[theme.token(name) for name in families]),
        legend=legend,
    )
    shape = alt.Shape(
        "family:N",
        scale=alt.Scale(domain=families, range=[theme.look(name).shape for name in families]),
        legend=legend,
    )
    shown = ("model", "run with", "layers", "size", "rate (95 %)", "time", "seeds")
    tooltip = [alt.Tooltip(f"{name}:N") for name in shown]
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y)
    front = (
        base.transform_filter("datum.step")
        .mark_line(interpolate="step-after", strokeDash=[5, 4], strokeWidth=1.5, color="~muted")
        .encode(order=alt.Order("time_s:Q"))
    )
    intervals = (
        base.transform_filter("datum.own && isValid(datum.low)")
        .mark_rule(strokeWidth=1.5, opacity=0.7)
        .encode(y=alt.Y("low:Q", title=error), y2="high:Q", color=color)
    )
    ranges = (
        base.transform_filter("datum.own && isValid(datum.time_low)")
        .mark_rule(strokeWidth=1.5, opacity=0.7)
        .encode(x=alt.X("time_low:Q", title=title, **across), x2="time_high:Q", color=color)
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
    # On narrow screens the page sets `labels` to false, which labels only the front.
    chart = alt.layer(front, intervals, ranges, exchanged, own, *labels).add_params(
        alt.param(name="labels", value=True)
    )
    return spec_of(chart)


def _axis(values: list[float], padding: float, log: bool) -> dict[str, Any]:
    if not log:
        low, high = extent(values)
        if (low, high) == (min(values), max(values)):
            return {"scale": alt.Scale(zero=False, padding=padding)}
        return {"scale": alt.Scale(domain=[low, high], zero=False, nice=False, padding=padding)}
    scale = alt.Scale(type="log", nice=False, padding=padding)
    return {"scale": scale, "axis": log_axis(log_ticks([x for x in values if x > 0]))}


def _interval_words(of_split: dict[str, list[dict[str, Any]]], unit: str) -> str:
    counts = {row["seeds"] for rows in of_split.values() for row in rows}
    if counts == {1}:
        return f"over {unit} (bootstrap)"
    if 1 in counts:
        return f"over seeds, or over {unit} for a single seed"
    return "over seeds"


def _series(rows: list[dict[str, Any]]) -> list[Series]:
    families = theme.in_family_order(list({row["family"]: None for row in rows if row["own"]}))
    entries = [Series(name, name) for name in families]
    if any(not row["own"] for row in rows):
        entries.append(Series(EXCHANGED, "other", hollow=True, shown=False))
    return entries
