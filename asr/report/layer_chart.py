"""The cost of exchanging the attention of one layer at a time."""

from typing import Any

import altair as alt

from asr.approximation.run import MechanismResult, TaskResult
from asr.report.figure import Figure, Panel, line_channels, lines_of, spec_of
from asr.report.provenance import of_environment

MEASURES = ("KL", "WER")  # a panel for each


def figure(result: TaskResult, layers: dict[str, list[MechanismResult]], record: dict[str, Any]) -> Figure:
    """Return the figure: a line per mechanism over the layers, and full attention as a rule.

    Args:
        result: results of the task.
        layers: results with each mechanism in each layer, first to last.
        record: content of `results.json`, for the provenance.
    """
    lines = lines_of({name: name for name in layers})
    return Figure(
        key="layers",
        label="Layers",
        title="The attention of one layer exchanged, full attention in the others",
        caption=(
            "KL: Kullback–Leibler divergence from the output distribution under full attention. The rule is "
            f"full attention. {result.examples} inputs."
        ),
        panels=[Panel(measure, _spec(result, layers, measure)) for measure in MEASURES],
        provenance=of_environment(record["environment"], "", str(record["options"]["data"])),
        series=lines,
    )


def _spec(result: TaskResult, layers: dict[str, list[MechanismResult]], measure: str) -> dict[str, Any]:
    values = [
        {"series": name, "layer": number, "value": row.scores[measure].value}
        for name, rows in layers.items()
        for number, row in enumerate(rows, 1)
    ]
    color, dashes = line_channels(lines_of({name: name for name in layers}))
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("value:Q", title=measure),
        color=color,
    )
    tooltip = [alt.Tooltip("series:N"), alt.Tooltip("layer:O"), alt.Tooltip("value:Q", format=".4f")]
    full = alt.Chart(alt.Data(values=[{"value": result.rows[0].scores[measure].value}]))
    rule = full.mark_rule(strokeDash=[2, 2]).encode(y="value:Q")
    points = base.mark_point(size=50, filled=True, opacity=1).encode(tooltip=tooltip)
    return spec_of(alt.layer(rule, base.mark_line(strokeWidth=1.8).encode(strokeDash=dashes), points))
