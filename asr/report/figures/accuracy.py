"""Error rate, or divergence from full attention, against time, with the Pareto front."""

from collections.abc import Collection
from typing import Any

import altair as alt

from asr.console import duration
from asr.experiment.results import Results, System
from asr.experiment.variant import Variant
from asr.report import theme
from asr.report.axes import extent, log_axis, log_ticks, needs_log
from asr.report.figure import Figure, Panel, Series, spec_of
from asr.report.labels import ANCHORS, HALF, NARROW, WIDE, place_labels
from asr.report.tables.scores import layers, sizes
from asr.report.words import (
    clock_words,
    counterpart,
    duration_range,
    measured,
    mechanism_words,
    metric_title,
    metric_words,
    scored,
)
from asr.scoring.measures import is_share, measure_of
from asr.scoring.statistics import Estimate

EXCHANGED = "exchanged at evaluation"
HEIGHT = 400
DIVERGENCE = "kl"
LEAST = 1e-3  # nats; stands for 0, full attention's divergence from itself, on a logarithmic axis


def figure(results: Results) -> Figure | None:
    """Return the figure of the main error rate against time, a panel per split; None without times."""
    metrics = {split: results.metrics(split)[0] for split in results.splits() if results.metrics(split)}
    return _figure(results, metrics, "figure-accuracy", "Accuracy")


def divergence(results: Results) -> Figure | None:
    """Return the figure of the divergence from full attention against time; None if not measured."""
    metrics = {split: DIVERGENCE for split in results.splits() if DIVERGENCE in results.metrics(split)}
    return _figure(results, metrics, "figure-divergence", "Divergence")


def _figure(results: Results, metrics: dict[str, str], key: str, label: str) -> Figure | None:
    swept = [split for split in metrics if layers(results, split)]  # shown in a separate figure
    every = {split: points(results, split, metric) for split, metric in metrics.items() if split not in swept}
    of_split = {split: rows for split, rows in every.items() if rows}
    if not of_split:
        return None
    log = _log_axes([row for rows in of_split.values() for row in rows if row["own"]])
    for rows in of_split.values():
        _add_labels(rows, WIDE if len(of_split) == 1 else HALF, log)
    named = " and ".join(dict.fromkeys(metric_words(metrics[split]) for split in of_split))
    relative = "baseline" in results.protocol
    timed = f"the time of the {sizes(results, next(iter(of_split)))['timed']}" if relative else "forward time"
    return Figure(
        key=key,
        label=label,
        title=f"{named} against {timed}",
        caption=_relative_caption(results, metrics) if relative else _caption(results, of_split),
        panels=[
            Panel(
                f"Split {split}" if len(of_split) > 1 else "",
                _spec(rows, metrics[split], _time_title(results, split), log),
                HEIGHT,
            )
            for split, rows in of_split.items()
        ],
        series=_series([row for rows in of_split.values() for row in rows]),
        log=("x", "y"),
        log_at_first=log,
    )


def _caption(results: Results, of_split: dict[str, list[dict[str, Any]]]) -> str:
    variants = any(row["variant"] for rows in of_split.values() for row in rows)
    also = ", and one per variant of it at another precision, frame rate or depth" if variants else ""
    return (
        f"One point per model, run with the mechanism it was trained with{also}. Time is "
        f"{clock_words(results.clock)} of encoder and head over the whole split, the median of repeats. "
        f"Vertical bars: 95 % interval {_interval_words(of_split, results.unit)}. Horizontal bars: "
        "lowest to highest repeat. Dashed line: Pareto front; models with overlapping times count as "
        f"equally fast. {counterpart('Figure 1')}"
    )


def _relative_caption(results: Results, metrics: dict[str, str]) -> str:
    kl = (
        " KL: Kullback–Leibler divergence from the output distribution under full attention; values below "
        f"{LEAST:g} nats are drawn at {LEAST:g}."
        if DIVERGENCE in metrics.values()
        else ""
    )
    return (
        f"One point per variant of a trained model, nothing trained again. Time relative to "
        f"{results.protocol['baseline']}, both run in turn on each batch; horizontal bars are quartiles over "
        "batches, vertical bars 95 % intervals over inputs. Dashed line: Pareto front; variants with "
        f"overlapping times count as equally fast.{kl}"
    )


def _time_title(results: Results, split: str) -> str:
    if "baseline" in results.protocol:
        return f"{clock_words(results.clock)} / {results.protocol['baseline']}"
    return f"forward pass over {split}, {clock_words(results.clock)} (s)"


def points(results: Results, split: str, metric: str) -> list[dict[str, Any]]:
    """Return a row for every system and every exchange at evaluation, rates in percent, times in seconds."""
    systems, front = results.systems(split), results.front(split, metric)
    exchanged = {
        f"{x.candidate}, {x.variant}": (x.candidate, x.variant)
        for x in results.evaluations
        if x.split == split and (x.candidate, x.variant) not in systems.values()
    }
    rows = []
    for name, system in (systems | exchanged).items():
        row = _point(results, split, metric, system)
        if row:
            row |= {"name": name, "own": name in systems, "front": name in front}
            row["series"] = row["family"] if row["own"] else EXCHANGED
            rows.append(row)
    steps = _steps(results, split, metric, front)
    for row in rows:
        row["step"] = row["own"] and row["name"] in steps
    return rows


def _point(results: Results, split: str, metric: str, system: System) -> dict[str, Any]:
    """Return the row of a system; an empty one without a rate or a time."""
    label, variant = system
    candidate = results.candidate(label)
    estimate, time = results.error_rate(label, split, metric, variant), results.time(system, split)
    if estimate is None or time is None:
        return {}
    scale = 100 if is_share(metric) else 1
    relative = results.ratio(system, split, "time") is not None
    repeats = f" ({duration_range(time)} in {time.count} repeats)" if time.count > 1 else ""
    times = time.text("{:.2f}".format) if relative else f"{duration(time.value)}{repeats}"
    least = LEAST if metric == DIVERGENCE else 0.0

    def drawn(value: float | None) -> float | None:
        # An interval over few seeds may reach below zero, where a logarithmic axis ends.
        return None if value is None else max(scale * value, least)

    return {
        "family": theme.family(variant),
        "model": label,
        "run with": variant,
        "variant": results.was_trained(label) and variant.startswith(f"{candidate.attention} "),
        "layers": candidate.layers,
        "size": mechanism_words(Variant.read(variant).attention),
        "time_s": time.value,
        "time_low": time.low,
        "time_high": time.high,
        "rate": drawn(estimate.value),
        "time": times,
        "rate (95 %)": scored(estimate, metric) if relative else measured(estimate, metric),
        "seeds": estimate.count,
        "low": drawn(estimate.low),
        "high": drawn(estimate.high),
    }


def _steps(results: Results, split: str, metric: str, front: list[str]) -> list[str]:
    """Return the systems that the front's line connects: the most accurate of each group level in time.

    A single system is left out, because one point makes no line.
    """
    sign, systems = (-1 if measure_of(metric).higher else 1), results.systems(split)
    steps: list[tuple[Estimate, float, str]] = []
    for name in front:  # the fastest first
        label, variant = systems[name]
        time, rate = results.time((label, variant), split), results.error_rate(label, split, metric, variant)
        if time is None or rate is None:
            continue
        error = sign * rate.value
        if steps and steps[-1][0].level_with(time):
            steps[-1] = min(steps[-1], (time, error, name), key=lambda entry: entry[1])
        elif not steps or error < steps[-1][1]:
            steps.append((time, error, name))
    return [name for *_, name in steps] if len(steps) > 1 else []


def _log_axes(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the axes that need a logarithmic scale: else one slow or bad model would crowd the others."""
    rates = [value for row in rows for value in (row["rate"], row["low"]) if value is not None]
    values = {"x": [row["time_s"] for row in rows], "y": rates}
    return tuple(axis for axis, positions in values.items() if positions and needs_log(positions))


def _add_labels(rows: list[dict[str, Any]], plot_width: float, log: Collection[str]) -> None:
    """Add label positions for wide and narrow screens to the rows of models run as they were trained."""
    own_rows = [row for row in rows if row["own"]]
    for row, wide, narrow in zip(
        own_rows,
        place_labels(own_rows, own_rows, plot_width, log),
        place_labels(own_rows, [row for row in own_rows if row["front"]], NARROW, log),
        strict=True,
    ):
        row |= {"anchor": wide, "narrow": narrow}


def _spec(rows: list[dict[str, Any]], metric: str, title: str, log: Collection[str]) -> dict[str, Any]:
    families = theme.in_family_order(list({row["family"]: None for row in rows}))
    trained = [name for name in families if any(row["own"] and row["family"] == name for row in rows)]
    # If every point has room for a label, no legend is needed.
    labelled = all(row.get("anchor") for row in rows if row["own"])
    legend = None if labelled else alt.Legend(title=None, orient="top", symbolOpacity=1, values=trained)
    error = f"{metric_title(metric)}, {'higher' if measure_of(metric).higher else 'lower'} is better"
    times = [value for row in rows for name in ("time_s", "time_low", "time_high") if (value := row[name])]
    across = _axis(times, 24, "x" in log)
    x = alt.X("time_s:Q", title=title, **across)
    bounds = [value for row in rows for name in ("rate", "low", "high") if (value := row[name]) is not None]
    upward = _axis(bounds, 26, "y" in log)  # room for a label below the lowest point
    if metric == DIVERGENCE and "axis" in upward:  # full attention's is 0, which a log axis can't show
        upward["axis"].labelExpr = f"datum.value <= {LEAST} ? '0' : datum.label"
    y = alt.Y("rate:Q", title=error, **upward)
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
    trained_points = (
        base.transform_filter("datum.own")
        .mark_point(size=110, filled=True, opacity=1, stroke="~card", strokeWidth=1)
        .encode(color=color, shape=shape, tooltip=tooltip)
    )
    outline: dict[str, Any] = {"stroke": "~card", "strokeWidth": 3, "strokeJoin": "round", "aria": False}
    labels = [
        base.transform_filter(f"(labels ? datum.anchor : datum.narrow) === '{anchor}'")
        .mark_text(align=align, dx=dx, dy=dy, fontSize=11, color="~ink", **look)
        .encode(text="name:N", tooltip=tooltip)
        for look in (outline, {})  # the outline keeps names clear of bars
        for anchor, (align, dx, dy) in ANCHORS.items()
        if any(anchor in (row.get("anchor"), row.get("narrow")) for row in rows)
    ]
    # On narrow screens the page sets `labels` to false, which labels only the front.
    chart = alt.layer(front, intervals, ranges, exchanged, trained_points, *labels).add_params(
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
