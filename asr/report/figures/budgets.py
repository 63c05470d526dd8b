"""Error rate against training time, for comparisons with several budgets."""

from typing import Any

import altair as alt

from asr.experiment.results import Results
from asr.report.figure import Figure, Panel, Series, line_chart, lines_of
from asr.report.words import clock_words, measured, metric_title, metric_words
from asr.scoring.measures import is_share
from asr.training.budget import parse_budget

HEIGHT = 320


def figure(results: Results) -> Figure | None:
    """Return the figure with one panel per split; None with one budget."""
    of_split = {
        split: rows
        for split in results.splits()
        if results.metrics(split) and (rows := budget_rows(results, split, results.metrics(split)[0]))
    }
    if not of_split:
        return None
    drawn = {row["series"] for rows in of_split.values() for row in rows}
    lines = lines_of({x.model: x.attention for x in results.candidates if x.model in drawn})
    named = " and ".join(dict.fromkeys(metric_words(results.metrics(split)[0]) for split in of_split))
    return Figure(
        key="figure-budgets",
        label="Budgets",
        title=f"{named} against training time",
        caption=(
            "One training per point and seed, each with a schedule that ends at its budget. Means with "
            "95 % intervals, over seeds if there are several."
        ),
        panels=[
            Panel(
                f"Split {split}" if len(of_split) > 1 else "",
                _spec(rows, lines, results.metrics(split)[0], results.clock),
                HEIGHT,
            )
            for split, rows in of_split.items()
        ],
        series=lines,
        log=("x", "y"),
        log_at_first=("x",),
    )


def budget_rows(results: Results, split: str, metric: str) -> list[dict[str, Any]]:
    """Return a row for every model and budget, with error rates in percent."""
    scale = 100 if is_share(metric) else 1
    rows = []
    for candidate in results.candidates:
        budget, rate = parse_budget(candidate.budget), results.error_rate(candidate.label, split, metric)
        if budget and rate:
            low, high = rate.interval or (None, None)
            rows.append(
                {
                    "series": candidate.model,
                    "budget": candidate.budget,
                    "minutes": budget.seconds / 60,
                    "rate": scale * rate.value,
                    # An interval over few seeds may reach below zero, where a logarithmic axis ends.
                    "low": None if low is None else max(scale * low, 0.0),
                    "high": None if high is None else scale * high,
                    "rate (95 %)": measured(rate, metric),
                    "seeds": rate.count,
                }
            )
    return rows


def _spec(rows: list[dict[str, Any]], lines: list[Series], metric: str, clock: str) -> dict[str, Any]:
    x = alt.X(
        "minutes:Q",
        title=f"training time, {clock_words(clock)} (min)",
        scale=alt.Scale(type="log", nice=False, padding=24),
        axis=alt.Axis(values=sorted({row["minutes"] for row in rows}), format=".3~g"),
    )
    y = alt.Y("rate:Q", title=metric_title(metric), scale=alt.Scale(zero=False))
    return line_chart(rows, lines, x, y, ["budget:N", "rate (95 %):N", "seeds:N"])
