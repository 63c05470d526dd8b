"""Loss of accuracy when the attention of one layer is exchanged, or the frame rate from one on."""

from typing import Any

import altair as alt

from asr.experiment.results import Results
from asr.report.figure import Figure, Panel, Series, line_chart, lines_of
from asr.report.tables.scores import FULL, frames_note, layers
from asr.report.words import metric_title
from asr.scoring.measures import is_share


def figure(results: Results, split: str) -> Figure | None:
    """Return a line per mechanism or frame rate over the layers, and a rule for full attention.

    None without a sweep.
    """
    swept = layers(results, split)
    if not swept:
        return None
    lines = lines_of({name: name for name, *_ in swept})
    metrics = results.metrics(split)
    shown = dict.fromkeys(["kl", metrics[0]] if "kl" in metrics else metrics[:1])
    return Figure(
        key=f"figure-layers-{split}",
        label="Layers",
        title="The attention of one layer exchanged, full attention in the others",
        caption="The rule is full attention." + frames_note(swept) + (KL if "kl" in metrics else ""),
        panels=[Panel(metric_title(x), _spec(results, split, lines, x)) for x in shown],
        series=lines,
    )


KL = " KL: Kullback–Leibler divergence from the output distribution under full attention, in nats."


def _spec(results: Results, split: str, lines: list[Series], metric: str) -> dict[str, Any]:
    scale = 100 if is_share(metric) else 1

    def value(label: str, variant: str) -> float | None:
        rate = results.error_rate(label, split, metric, variant)
        return scale * rate.value if rate else None

    swept = layers(results, split)
    rows = [{"series": name, "layer": layer, "value": value(*system)} for name, layer, system in swept]
    label = swept[0][2][0]
    full = alt.Chart(alt.Data(values=[{"value": value(label, FULL)}]))
    rule = full.mark_rule(strokeDash=[2, 2]).encode(y="value:Q")
    x = alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0))
    y = alt.Y("value:Q", title=metric_title(metric))
    return line_chart(rows, lines, x, y, ["layer:O", alt.Tooltip("value:Q", format=".4f")], rule)
