"""Figure 1: error rate against the time of a full forward pass, with the Pareto front."""

from collections.abc import Collection
from typing import Any

import altair as alt

from asr.compare.estimates import Estimate
from asr.compare.results import Results
from asr.compare.words import clock_words, mechanism_words, metric_words, percent, seconds
from asr.report import theme
from asr.report.axes import log_axis, log_ticks, needs_log
from asr.report.figure import Figure, Panel, Provenance, Series, spec_of
from asr.report.labels import ANCHORS, HALF, NARROW, WIDE, place_labels

EXCHANGED = "exchanged at evaluation"
HEIGHT = 400


def figure(results: Results, provenance: Provenance) -> Figure | None:
    """Return the figure, one panel a split; None where no forward pass was timed."""
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
            f"One point a model, run with the mechanism it was trained with; time is {clock_words(clock)} of "
            "encoder and CTC head over the whole split, the median of repeats interleaved over all models. "
            f"Bars: 95 % interval, {_interval_words(of_split)}. The dashed line is the Pareto front: "
            "no other model is both faster and more accurate."
        ),
        panels=panels,
        series=_series([row for rows in of_split.values() for row in rows]),
        log=("x", "y"),
        log_at_first=log,
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
    return rows


def _log_axes(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the axes on which models would crowd near zero: one slow or bad model is enough for that."""
    rates = [value for row in rows for value in (row["rate"], row["low"]) if value is not None]
    values = {"x": [row["time_s"] for row in rows], "y": rates}
    return tuple(axis for axis, found in values.items() if found and needs_log(found))


def _add_labels(rows: list[dict[str, Any]], plot_width: float, log: Collection[str]) -> None:
    """Add the labels' places to the models' own rows, for a wide and for a narrow screen."""
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
    error = f"{metric_words(metric)} (%)"
    title = f"forward pass over {split}, {clock_words(clock)} (s)"
    x = alt.X("time_s:Q", title=title, **_axis([row["time_s"] for row in rows], 24, "x" in log))
    bounds = [value for row in rows for name in ("rate", "low", "high") if (value := row[name])]
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


def _axis(values: list[float], padding: float, log: bool) -> dict[str, Any]:
    if not log:
        # An axis over one value alone would round it to the nearest whole number.
        return {"scale": alt.Scale(zero=len(set(values)) == 1, padding=padding)}
    scale = alt.Scale(type="log", nice=False, padding=padding)
    return {"scale": scale, "axis": log_axis(log_ticks(values))}


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
