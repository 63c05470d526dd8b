"""Attention from the tokens of a question to its context, under several mechanisms."""

from collections.abc import Iterator
from typing import Any

import altair as alt
from asr_recipes.questions.maps import QuestionMap

from asr.attention.maps import described_choice
from asr.experiment.results import Results
from asr.report.figure import Figure, Panel, spec_of
from asr.report.figures.attention import GAMMA, PIXELS, picture
from asr.report.words import counterpart

WIDTH, ROW = 860, 16  # width of a map and height of a row, pixels
LABEL_ROWS = 4.5  # height of the names above a map, in rows
LETTERS = 12  # shown of each token


def figure(results: Results) -> Figure | None:
    """Return, for each head, one map per mechanism, full attention first; None without maps."""
    maps = [QuestionMap.from_json(one, "drawn: maps") for one in results.drawn.get("maps", [])]
    if not maps:
        return None
    shares = "; ".join(f"{_head(one)}: {_same(one)}" for one in maps)
    asked = results.protocol["exchange"]
    heads = [(one.layer, one.head, one.difference) for one in maps]
    return Figure(
        key="figure-question",
        label="Attention",
        title=f"Question {maps[0].question}: " + " and ".join(map(_head, maps)),
        caption=(
            "Rows are the tokens of the question, columns those of the input: question and context, with "
            "the answer marked below. Above a map are the tokens with the largest weight of a row, bold "
            "where full attention has them, too; dots mark them in the map. All maps use the queries and "
            f"keys under full attention. {described_choice(heads, asked['layer'], asked['head'])} "
            "Brightness is the square root of the weight. Rows whose largest weight is on the same token as "
            f"with full attention: {shares}. {counterpart('Figure 8')}"
        ),
        panels=[
            Panel(
                f"{name}, {_head(one)}",
                _map_spec(one, name),
                round(ROW * (len(one.rows) + LABEL_ROWS + 1)),
                WIDTH,
            )
            for one in maps
            for name in one.weights_QN
        ],
        columns=1,
    )


def _head(one: QuestionMap) -> str:
    return f"layer {one.layer}, head {one.head}"


def _same(one: QuestionMap) -> str:
    others = list(one.weights_QN)[1:]
    return ", ".join(f"{name} {one.same_top(name):.0%}" for name in others) or "none compared"


def _map_spec(mapped: QuestionMap, name: str) -> dict[str, Any]:
    weights_QN = mapped.weights_QN[name]
    rows, columns = weights_QN.shape
    across = alt.Scale(domain=[-0.12 * columns, columns], nice=False, zero=False)
    downward = alt.Scale(domain=[-LABEL_ROWS, rows + 1], nice=False, zero=False, reverse=True)
    x = alt.X("x:Q", scale=across, axis=None)
    y = alt.Y("y:Q", scale=downward, axis=None)
    largest = max(float(next(iter(mapped.weights_QN.values())).max()), 1e-9)
    relative_QN = (weights_QN.clamp(min=0) / largest).clamp(max=1)
    image = {
        "name": f"attention weights of {name}, {rows} tokens of the question by {columns} of the input",
        # Repeated rows stay sharp when the image is stretched.
        "url": picture((relative_QN**GAMMA).repeat_interleave(max(1, PIXELS // rows), 0), 1.0),
        "x": 0,
        "x2": columns,
        "y": 0,
        "y2": rows,
    }
    pictures = (
        alt.Chart(alt.Data(values=[image]))
        .mark_image(aspect=False)
        .encode(x=x, x2="x2:Q", y=y, y2="y2:Q", url="url:N", description="name:N")
    )
    cells = [
        {"token": mapped.tokens[at][:LETTERS], "x": -0.005 * columns, "y": row + 0.5}
        for row, at in enumerate(mapped.rows)
    ]
    labels = (
        alt.Chart(alt.Data(values=cells))
        .mark_text(align="right", baseline="middle", fontSize=10, color="~ink")
        .encode(x=x, y=y, text="token:N")
    )
    bars = [{"x": at, "x2": at + 1, "y": rows + 0.25, "y2": rows + 0.75} for at in mapped.answer]
    marked = (
        alt.Chart(alt.Data(values=bars)).mark_rect(color="~deletion").encode(x=x, x2="x2:Q", y=y, y2="y2:Q")
    )
    return spec_of(alt.layer(pictures, labels, marked, *_top_layers(mapped, name, x, y)))


def _top_layers(mapped: QuestionMap, name: str, x: alt.X, y: alt.Y) -> Iterator[alt.Chart]:
    """Yield the names of the keys with a row's largest weight, slanted, and a dot in each such cell."""
    weights_QN = mapped.weights_QN[name]
    columns = weights_QN.shape[1]
    best = [places[0] for places in mapped.top(name)]
    full = {places[0] for places in mapped.top(next(iter(mapped.weights_QN)))}
    dots = [
        {
            "x": at + 0.5,
            "y": row + 0.5,
            "from": mapped.tokens[mapped.rows[row]],
            "to": mapped.tokens[at],
            "weight": round(float(weights_QN[row, at]), 3),
        }
        for row, at in enumerate(best)
    ]
    tooltip = [alt.Tooltip("from:N"), alt.Tooltip("to:N"), alt.Tooltip("weight:Q")]
    yield (
        alt.Chart(alt.Data(values=dots))
        .mark_point(filled=True, size=16, color="~page", opacity=1, stroke="~ink", strokeWidth=0.6)
        .encode(x=x, y=y, tooltip=tooltip)
    )
    # The most heavily weighted first; a name that would cover another one is left out.
    order = sorted(set(best), key=lambda at: -float(weights_QN[:, at].max()))
    shown: list[int] = []
    for at in order:
        if all(abs(at - other) * WIDTH / (1.12 * columns) >= 11 for other in shown):
            shown.append(at)
    for weight in ("bold", "normal"):
        names = [
            {"token": mapped.tokens[at][:LETTERS], "x": at + 0.5, "y": -0.3}
            for at in sorted(shown)
            if (at in full) == (weight == "bold")
        ]
        yield (
            alt.Chart(alt.Data(values=names))
            .mark_text(
                align="left", baseline="middle", angle=300, fontSize=10, fontWeight=weight, color="~ink"
            )
            .encode(x=x, y=y, text="token:N")
        )
