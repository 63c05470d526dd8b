"""Figure 5: accuracy on the masked copy task by sequence length and mechanism."""

from typing import Any

import altair as alt

from asr.compare.results import Results
from asr.report import theme
from asr.report.figure import Figure, Panel, Provenance, spec_of

ROW_HEIGHT, COLUMN_WIDTH = 26, 72
BARE: dict[str, Any] = {"domain": False, "ticks": False}


def figure(results: Results, provenance: Provenance) -> Figure | None:
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
    names = theme.in_family_order(list({row["attention"]: None for row in rows}))
    width = COLUMN_WIDTH * len({row["length"] for row in rows})
    return Figure(
        key="figure-5",
        label="Figure 5",
        title="Masked copy: accuracy by length and mechanism",
        caption=(
            "Correct symbols in percent; the tooltip shows the training steps. L is the length of each half: "
            "the copy of a masked symbol is L + 1 positions away. Empty: not trained."
        ),
        panels=[Panel("", _spec(rows, names), ROW_HEIGHT * len(names), width)],
        provenance=provenance,
    )


def _spec(rows: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    lengths = sorted({row["length"] for row in rows})
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("length:O", title="L", sort=lengths, axis=alt.Axis(orient="top", labelAngle=0, **BARE)),
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
