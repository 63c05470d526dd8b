"""Figure 5 of *Fast Transformers with Clustered Attention*: a map of accuracy by length for each family."""

from typing import Any

import altair as alt

from asr.experiment.results import Results
from asr.report import theme
from asr.report.figure import Figure, Panel, spec_of
from asr.report.words import counterpart

ROW_HEIGHT, COLUMN_WIDTH = 26, 72
BARE: dict[str, Any] = {"domain": False, "ticks": False}


def figure(results: Results) -> Figure | None:
    """Return the figure for a comparison with recipe `copy`; None if no training has finished."""
    rows: list[dict[str, Any]] = []
    default = results.protocol.get("training", {}).get("recipe.length")
    for candidate in results.candidates:
        errors = [x.dev_error for x in results.trainings_of(candidate.label) if x.dev_error is not None]
        steps = [x.steps for x in results.trainings_of(candidate.label) if x.steps is not None]
        if errors:
            rows.append(
                {
                    "attention": candidate.attention,
                    "length": int(candidate.overrides.get("recipe.length", default or 0)),
                    "accuracy": 100 * (1 - sum(errors) / len(errors)),
                    "steps": round(sum(steps) / len(steps)) if steps else 0,
                }
            )
    if not rows:
        return None
    lengths = sorted({row["length"] for row in rows})
    panels = []
    for family in dict.fromkeys(theme.family(name) for name in theme.in_family_order([*_names(rows)])):
        of_family = [row for row in rows if theme.family(row["attention"]) == family]
        names = theme.in_family_order([*_names(of_family)])
        height, width = ROW_HEIGHT * len(names), COLUMN_WIDTH * len(lengths)
        panels.append(Panel(family, _spec(of_family, names, lengths), height, width))
    return Figure(
        key="figure-copy",
        label="Copy",
        title="Masked copy: accuracy by length and mechanism",
        caption=(
            "Correct symbols in percent; the tooltip shows the training steps. L is the length of each half: "
            "the copy of a masked symbol is L + 1 positions away. Empty: not trained. "
            + counterpart("Figure 5")
        ),
        panels=panels,
    )


def _names(rows: list[dict[str, Any]]) -> dict[str, None]:
    return {row["attention"]: None for row in rows}


def _spec(rows: list[dict[str, Any]], names: list[str], lengths: list[int]) -> dict[str, Any]:
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X(
            "length:O",
            title="L",
            sort=lengths,
            scale=alt.Scale(domain=lengths),
            axis=alt.Axis(orient="top", labelAngle=0, **BARE),
        ),
        y=alt.Y("attention:N", title=None, sort=names, axis=alt.Axis(**BARE)),
        tooltip=[
            alt.Tooltip("attention:N"),
            alt.Tooltip("length:O", title="L"),
            alt.Tooltip("accuracy:Q", title="accuracy (%)", format=".2f"),
            alt.Tooltip("steps:Q"),
        ],
    )
    cells = base.mark_rect(stroke="~card", strokeWidth=2).encode(
        color=alt.Color("accuracy:Q", scale=alt.Scale(domain=[0, 100], range=theme.SEQUENCE), legend=None)
    )
    text = base.mark_text(fontSize=11).encode(
        text=alt.Text("accuracy:Q", format=".1f"),
        color=alt.condition("datum.accuracy > 60", alt.value("#000000"), alt.value("#ffffff")),
    )
    return spec_of(alt.layer(cells, text))
