"""Draws the clusters into which CAST divides the pixels or patches of an image.

    python -m asr_recipes.longrange.maps run=exp/longrange/pathfinder/cast-16 items=4

*CAST*, van Engelenhoven et al. 2024, Figure 4: a row for each image, with the image, its pixels coloured by
cluster in the first layer and the scores A_g of two clusters, then the same for the last layer.
"""

import colorsys
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from asr_recipes.longrange.data import ItemData, collate
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from asr.attention.cast import CAST
from asr.config import option, parse
from asr.data.sampler import BatchPlan
from asr.errors import UserError, run_program
from asr.files import atomic_path
from asr.model.attention_model import AttentionModel
from asr.training.labelling import load_task

PANEL = 128  # pixels per side of a panel, at least
MARGIN = 6  # pixels between panels
TITLE = 14  # pixels above a row
UNASSIGNED = (40, 40, 40)  # colour of pixels in no cluster


@dataclass
class Options:
    """Which images to show."""

    run: str = option(
        "",
        help="run folder of a model with attention=cast-C, trained with recipe.task=pathfinder",
        affects="result",
    )
    split: str = option("dev", help="dev | test", affects="result", choices=("dev", "test"))
    first: int = option(0, help="number of the first image", affects="result", maximum=1_000_000)
    items: int = option(4, help="images", affects="result", minimum=1, maximum=100)
    head: int = option(1, help="attention head, from 1", affects="result", minimum=1, maximum=1024)
    output: str = option("", help="picture to write; empty: clusters.png in the run folder", affects="place")


@dataclass(frozen=True)
class ClusterMap:
    """Clusters of an image in a layer.

    Attributes:
        clusters: [side, side] cluster of each patch; −1: none.
        scores: [C, side, side] A_g, 0 … 1.
    """

    clusters: NDArray[np.int64]
    scores: NDArray[np.float32]


def cluster_maps(model: AttentionModel, values: Tensor, lengths: Tensor, head: int) -> list[list[ClusterMap]]:
    """Return the clusters of images in the first and the last layer.

    Args:
        model: classifier with CAST in every layer.
        values: [B, N] grey values of square images.
        lengths: [B], N each.
        head: number of the head, from 0.

    Returns:
        For each image, the maps of the first and of the last layer.

    Raises:
        UserError: the model has another mechanism, or fewer heads.
    """
    layers = [layer for layer in model.attention_layers() if isinstance(layer, CAST)]
    if not layers:
        raise UserError(f"attention {model.attention!r}: expected a model with cast-C")
    if head >= layers[0].heads:
        raise UserError(f"head={head + 1}: expected 1 to {layers[0].heads}")
    assignments: list[tuple[Tensor, Tensor]] = []

    def record(layer: CAST, inputs: tuple[Tensor, Tensor]) -> None:
        assignments.append(layer.assignments(*inputs))

    hooks = [layer.register_forward_pre_hook(record) for layer in (layers[0], layers[-1])]
    with torch.no_grad():
        model(values, lengths)
    for hook in hooks:
        hook.remove()
    side = math.isqrt(assignments[0][0].shape[-1])  # patches
    if side * side != assignments[0][0].shape[-1]:
        raise UserError("expected a model whose positions are patches, found model.subsampling > 1")
    return [
        [
            ClusterMap(
                clusters[b, head].view(side, side).numpy(),
                scores[b, head].T.reshape(-1, side, side).clamp(min=0).numpy(),
            )
            for clusters, scores in assignments
        ]
        for b in range(len(values))
    ]


def draw(image: NDArray[np.uint8], label: int, guess: int, maps: list[ClusterMap]) -> Image.Image:
    """Return a row: the image, and for each layer the clusters and the two scores that vary most.

    Args:
        image: [side, side] grey values.
        label, guess: true and recognised class.
        maps: clusters in the first and the last layer.
    """
    panels = [(f"label {label}, recognised {guess}", np.repeat(image[..., None], 3, axis=2))]
    for name, layer in zip(("first", "last"), maps, strict=True):
        palette = cluster_colours(len(layer.scores))
        panels.append((f"{name} layer: clusters", palette[layer.clusters]))
        for cluster in np.argsort(-layer.scores.std(axis=(1, 2)), kind="stable")[:2]:
            scores = layer.scores[cluster]
            grey = np.round(255 * scores / max(scores.max(), 1e-12)).astype(np.uint8)
            colour = palette[cluster] / 255
            panels.append(
                (f"{name} layer: score of {cluster + 1}", (grey[..., None] * colour).astype(np.uint8))
            )
    size = PANEL // len(image) * len(image) or len(image)
    row = Image.new("RGB", (len(panels) * (size + MARGIN) + MARGIN, size + TITLE + MARGIN), "white")
    writer = ImageDraw.Draw(row)
    for i, (title, pixels) in enumerate(panels):
        left = MARGIN + i * (size + MARGIN)
        writer.text((left, 1), title, fill="black", font_size=10)
        row.paste(Image.fromarray(pixels).resize((size, size), Image.Resampling.NEAREST), (left, TITLE))
    return row


def cluster_colours(clusters: int) -> NDArray[np.uint8]:
    """Return a colour for each cluster, and last the colour of pixels in none, [C + 1, 3]."""
    hues = [
        colorsys.hsv_to_rgb(i / clusters, 0.55 + 0.45 * (i % 2), 1.0 - 0.3 * (i % 3) / 2)
        for i in range(clusters)
    ]
    return np.array([*(np.multiply(255, hue) for hue in hues), UNASSIGNED]).astype(np.uint8)


def run(options: Options) -> Path:
    """Write the picture and return its path."""
    task, data = load_task(options.run)
    if not isinstance(data, ItemData) or data.source.values:
        raise UserError(f"run={options.run}: expected recipe.task=pathfinder, found {data.describe()}")
    model, source = task.model, data.source
    count = source.count(options.split)
    numbers = range(options.first, min(options.first + options.items, 2**31 if count is None else count))
    if not numbers:
        raise UserError(f"first={options.first}: expected a number below {count}")
    items = [source.item(options.split, index) for index in numbers]
    batch = collate(items, BatchPlan(tuple(numbers)))
    maps = cluster_maps(model, batch.values, batch.lengths, options.head - 1)
    with torch.no_grad():
        guesses = model(batch.values, batch.lengths).argmax(-1).tolist()
    side = round(source.longest**0.5)
    rows = [
        draw(item.sequence.reshape(side, side), item.label, guess, layers)
        for item, guess, layers in zip(items, guesses, maps, strict=True)
    ]
    page = Image.new("RGB", (rows[0].width, sum(row.height for row in rows)), "white")
    for i, row in enumerate(rows):
        page.paste(row, (0, i * row.height))
    path = Path(options.output or Path(options.run, "clusters.png"))
    with atomic_path(path) as temporary:
        page.save(temporary, format="PNG")
    return path


if __name__ == "__main__":
    sys.exit(run_program("maps", lambda: print(run(parse(Options, sys.argv[1:])))))
