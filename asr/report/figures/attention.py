"""Attention maps beside the spectrogram, and the approximation error by layer."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import torch
from PIL import Image, ImageColor
from torch import Tensor

from asr.config.names import split_name
from asr.console import counted
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.experiment.candidates import can_run, is_exchangeable
from asr.experiment.records import Candidate
from asr.experiment.results import Results
from asr.experiment.variant import Variant
from asr.recognizer import Recognizer
from asr.report import theme
from asr.report.attention_maps import AttentionMaps, approximation_errors, attention_maps
from asr.report.drawing import Item, Place, usable
from asr.report.figure import Figure, Panel, Series, data_uri, line_chart, lines_of, spec_of
from asr.report.findings import main_split
from asr.report.words import counterpart

SIZE = 340  # side of a map, pixels
PIXELS = 400  # maximum side of its image
MARGIN = 0.2  # space for spectrogram and labels, fraction of the map's side
UTTERANCES = 6  # in the mean of the approximation error
LONGEST_S = 20.0  # limit for utterances, because dense weights are quadratic
GAMMA = 0.5  # brightens small weights


def maps(results: Results, place: Place) -> Iterator[Item]:
    """Yield the results of `figures`, if the results have recordings and the user wants maps."""
    if place.folder and place.options.maps and results.data and results.trainings:
        yield from usable(lambda path: figures(results, path), [place.folder])


def figures(results: Results, folder: Path) -> Iterator[Figure]:
    """Yield the maps of the main split's utterance of median length, and the approximation errors of several.

    Args:
        results: results of the comparison.
        folder: base of the relative run folders.

    Raises:
        UserError: no trained model of the softmax family, or no short utterance.
    """
    candidate = subject(results)
    training = results.trainings_of(candidate.label)[0]
    recognizer = Recognizer.load(folder / training.run)
    split = main_split(results)
    names = mechanisms(results, candidate)
    cuts = sorted(read_cuts(results.data[split].manifest), key=lambda cut: (cut.duration, cut.id))
    rate = recognizer.model.sample_rate
    short = [cut for cut in cuts if cut.duration <= LONGEST_S]
    if not short:
        raise UserError(f"split {split}: expected an utterance of at most {LONGEST_S:g} s, found none")
    cut = short[len(short) // 2]
    first = {theme.family(name): name for name in reversed(names)}
    pictured = ["full", first["clustered"], first["i-clustered"]]
    text = cut.supervisions[0].text or ""
    maps = attention_maps(recognizer, torch.from_numpy(load_cut(cut, rate)), text, pictured)
    model = f"{candidate.label}, seed {training.seed}"
    differences = " and ".join(f"{difference:.2f}" for *_, difference in maps.heads)
    yield Figure(
        key="figure-maps",
        label="Attention",
        title="Attention maps of " + " and ".join(f"layer {x}, head {y}" for x, y, _ in maps.heads),
        caption=(
            f"Utterance {cut.id} of {split}: “{text}”. Rows are queries, columns are keys; spectrogram and "
            f"force-aligned transcript are along both. All maps use the queries and keys of {model}. "
            f"Of all heads, these differ most between the mechanisms: {differences}, the L1 distance "
            "(0 to 2) of a query's weights, averaged over queries and pairs of mechanisms. Brightness is "
            "the square root of the weight, on the same scale in all maps of a head. "
            f"{counterpart('Figure 8')}"
        ),
        panels=[
            Panel(f"{name}, layer {x}, head {y}", _map_spec(maps, weights_NN, name), SIZE, SIZE)
            for (x, y, _), weights_NN in zip(maps.heads, maps.weights_NN, strict=True)
            for name in weights_NN
        ],
        columns=min(3, len(pictured)),
    )
    chosen = _spread(short)
    rows = approximation_errors(
        recognizer.model, [torch.from_numpy(load_cut(x, rate)) for x in chosen], names
    )
    lines = lines_of(dict(zip(names, names, strict=True)))
    yield Figure(
        key="figure-distance",
        label="Attention",
        title="Distance of the attention weights from full attention, by layer",
        caption=(
            f"L1 distance (0 to 2) between a query's weights and those of full attention, on the queries and "
            f"keys of {model}; mean over queries, heads and {counted(len(chosen), 'utterance')} of {split}."
        ),
        panels=[Panel("", _error_spec(rows, lines))],
        series=lines,
        log=("y",),
    )


def subject(results: Results) -> Candidate:
    """Return the candidate to show: the one with full attention, or else another of the softmax family.

    Raises:
        UserError: no model of the softmax family was trained.
    """
    trained = [
        candidate
        for candidate in results.candidates
        if results.trainings_of(candidate.label) and is_exchangeable(candidate.attention)
    ]
    if not trained:
        raise UserError("expected a trained model of the softmax family, found none")
    order = ("full", "shared-full", *(candidate.mechanism for candidate in trained))
    return min(trained, key=lambda candidate: order.index(candidate.mechanism))


def mechanisms(results: Results, candidate: Candidate) -> list[str]:
    """Return the mechanisms to show: those of the comparison, and always clustered and i-clustered."""
    named = dict.fromkeys(
        Variant.read(x.variant).attention for x in results.evaluations if x.status == "done"
    )
    names = [
        name
        for name in named
        if theme.family(name) not in ("full", "shared-full")
        and "*" not in name  # the maps are of one layer, so no lists of mechanisms by layer
        and is_exchangeable(name)
        and can_run(candidate.attention, name)
    ]
    grouped = [x for x in names if theme.family(x) in ("clustered", "i-clustered")]
    clusters = split_name(grouped[0])[1] if grouped else "25"
    for kind in ("clustered", "i-clustered"):
        if not any(theme.family(name) == kind for name in names):
            names.append(f"{kind}-{clusters}")
    return theme.in_family_order(names)


def _spread(cuts: list[Any]) -> list[Any]:
    """Return utterances evenly spaced in the order of length."""
    count = min(UTTERANCES, len(cuts))
    return [cuts[i * (len(cuts) - 1) // max(1, count - 1)] for i in range(count)]


def picture(values: Tensor, scale: float) -> str:
    """Return a matrix [rows, columns] as a PNG data URI; colours from 0 to `scale`: `theme.SEQUENCE`."""
    rows, columns = (min(PIXELS, size) for size in values.shape)
    pooled = torch.nn.functional.adaptive_max_pool2d(values[None].float(), (rows, columns))[0]
    levels = (255 * (pooled / scale).clamp(0, 1)).round().to(torch.uint8).numpy()
    image = Image.fromarray(levels, mode="L").convert("P")
    anchors = np.array([ImageColor.getrgb(colour) for colour in theme.SEQUENCE])
    steps = np.linspace(0, 255, len(anchors))
    palette = np.stack([np.interp(np.arange(256), steps, channel) for channel in anchors.T], axis=1)
    image.putpalette(palette.round().astype(np.uint8).flatten().tolist())
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return data_uri(buffer.getvalue(), "image/png")


def _map_spec(maps: AttentionMaps, weights_NN: dict[str, Tensor], name: str) -> dict[str, Any]:
    frames = weights_NN[name].shape[0]
    edge, near = -MARGIN * frames, -0.055 * frames
    # All maps share a scale, up to the N/2-th largest weight of the first map; larger weights saturate.
    scale = float(next(iter(weights_NN.values())).float().flatten().sort().values[-max(1, frames // 2)])
    low, high = maps.spectrogram_TF.flatten().quantile(torch.tensor([0.02, 0.995])).tolist()
    spectrum_FT = (maps.spectrogram_TF - low).T.flip(0)  # low frequencies next to the map
    span = (high - low) or 1.0
    relative_NN = weights_NN[name].clamp(min=0) / max(scale, 1e-9)
    images = [
        (f"attention weights of {name}, {frames} by {frames}", relative_NN**GAMMA, 1.0, 0, frames, 0, frames),
        ("spectrogram along the keys", spectrum_FT, span, 0, frames, edge, near),
        ("spectrogram along the queries", spectrum_FT.T, span, edge, near, 0, frames),
    ]
    rows = [
        {"name": text, "url": picture(values, limit), "x": x, "x2": x2, "y": y, "y2": y2}
        for text, values, limit, x, x2, y, y2 in images
    ]
    limits = alt.Scale(domain=[edge, frames], nice=False, zero=False)
    downward = alt.Scale(domain=[edge, frames], nice=False, zero=False, reverse=True)
    pictures = (
        alt.Chart(alt.Data(values=rows))
        .mark_image(aspect=False)
        .encode(
            x=alt.X("x:Q", scale=limits, axis=None),
            x2="x2:Q",
            y=alt.Y("y:Q", scale=downward, axis=None),
            y2="y2:Q",
            url="url:N",
            description="name:N",  # for screen readers, which would otherwise read the data URI
        )
    )
    return spec_of(alt.layer(pictures, *_label_layers(maps, frames, near / 2, limits, downward)))


def _label_layers(
    maps: AttentionMaps, frames: int, middle: float, across: alt.Scale, downward: alt.Scale
) -> Iterator[alt.Chart]:
    """Yield the labels above and on the left, without those that would cover their predecessor."""
    rows: list[dict[str, Any]] = []
    for label, span in maps.labels:
        start, end = span.start_frame * maps.frame_s, span.end_frame * maps.frame_s
        rows.append(
            {
                "label": label,
                "at": (span.start_frame + span.end_frame) / 2,
                "time": f"{start:.2f}–{end:.2f} s",
                "confidence": round(span.confidence, 3),
                "edge": middle,
            }
        )
    pixel = SIZE / (frames * (1 + MARGIN))
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("label", "time", "confidence")]
    for x, y, width in (("at", "edge", 5.4), ("edge", "at", 0.0)):
        kept, free = [], -1e9
        for row in rows:
            half = max(4.0, width * len(row["label"]) / 2)
            if (at := pixel * row["at"]) - half >= free:
                kept.append(row)
                free = at + half
        yield (
            alt.Chart(alt.Data(values=kept))
            .mark_text(fontSize=7.5, color="~ink")
            .encode(
                x=alt.X(f"{x}:Q", scale=across, axis=None),
                y=alt.Y(f"{y}:Q", scale=downward, axis=None),
                text="label:N",
                tooltip=tooltip,
            )
        )


def _error_spec(rows: list[dict[str, float | int | str]], lines: list[Series]) -> dict[str, Any]:
    title = "L1 distance to full"
    x = alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0))
    y = alt.Y("error:Q", title=title, scale=alt.Scale(zero=False))
    named = [{**row, "series": row["mechanism"]} for row in rows]
    return line_chart(named, lines, x, y, ["layer:O", alt.Tooltip("error:Q", title=title, format=".4f")])
