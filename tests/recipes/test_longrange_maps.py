"""Pictures of the clusters of images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from asr_recipes.longrange.data import ItemData, collate
from asr_recipes.longrange.maps import UNASSIGNED, Options, cluster_colours, cluster_maps, run
from PIL import Image

from asr.data.sampler import BatchPlan
from asr.errors import UserError
from asr.training.config import train_options
from asr.training.labelling import load_task
from asr.training.run import train

OVERRIDES = [
    "recipe=longrange",
    "model.layers=2",
    "model.heads=2",
    "model.head_dim=8",
    "model.feedforward=16",
]
OVERRIDES += ["trainer.accelerator=cpu", "trainer.max_steps=1", "recipe.batch=2", "recipe.dev_items=2"]
PATHFINDER = [*OVERRIDES, "recipe.task=pathfinder", "recipe.size=16", "recipe.dashes=3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cast")
    train(train_options([*PATHFINDER, "attention=cast-5:assign=single", f"run={folder}"]))
    return folder


def test_every_pixel_has_one_cluster_of_limited_size(folder: Path) -> None:
    task, data = load_task(str(folder))
    assert isinstance(data, ItemData)
    model = task.model
    assert model.attention == "cast-5:assign=single"
    items = [data.source.item("dev", i) for i in range(3)]
    batch = collate(items, BatchPlan(()))
    maps = cluster_maps(model, batch.values, batch.lengths, head=1)
    assert len(maps) == 3
    for layers in maps:
        assert len(layers) == 2
        for found in layers:
            assert found.clusters.shape == (16, 16)
            assert found.scores.shape == (5, 16, 16)
            np.testing.assert_allclose(found.scores.sum(0), 1, atol=1e-5)
            sizes = np.bincount(found.clusters.flatten(), minlength=5)
            assert sizes.sum() == 256
            assert sizes.max() <= 52  # ⌈256 / 5⌉


def test_patches_have_clusters(tmp_path: Path) -> None:
    overrides = ["recipe.patch=2", "attention=cast-4", f"run={tmp_path}", "trainer.max_steps=1"]
    train(train_options([*PATHFINDER, *overrides]))
    trained, data = load_task(str(tmp_path))
    assert isinstance(data, ItemData)
    batch = collate([data.source.item("dev", 0)], BatchPlan(()))
    ((first, _),) = cluster_maps(trained.model, batch.values, batch.lengths, head=0)
    assert first.clusters.shape == (8, 8)
    assert run(Options(run=str(tmp_path), items=1)).exists()


def test_assignments_name_the_best_of_a_tokens_clusters(folder: Path) -> None:
    task, _ = load_task(str(folder))
    layer = task.model.attention_layers()[0]
    x = torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([40, 23])
    layer.assign, layer.capacity = "topk", 6
    clusters, scores = layer.assignments(
        x.masked_fill(torch.arange(40).view(1, -1, 1) >= 23, torch.nan), lengths * 0 + 23
    )
    assert clusters.shape == (2, 2, 40)
    assert scores.shape == (2, 2, 40, 5)
    assert (clusters[..., 23:] == -1).all()
    assert (clusters == -1)[..., :23].any()  # 5 clusters of 6 tokens overlap
    for h in range(2):
        best = [set(scores[0, h, :23, j].topk(6).indices.tolist()) for j in range(5)]
        for n in range(23):
            own = [j for j in range(5) if n in best[j]]
            assert int(clusters[0, h, n]) == (max(own, key=lambda j: scores[0, h, n, j]) if own else -1)


def test_the_picture_has_a_row_for_each_image(folder: Path, tmp_path: Path) -> None:
    path = run(Options(run=str(folder), items=2, head=2, output=str(tmp_path / "maps.png")))
    image = Image.open(path)
    assert image.size == (7 * (128 + 6) + 6, 2 * (128 + 14 + 6))
    assert run(Options(run=str(folder), items=1)) == folder / "clusters.png"
    colours = cluster_colours(40)
    assert len({tuple(colour) for colour in colours}) == 41
    assert tuple(colours[-1]) == UNASSIGNED


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        ([*PATHFINDER, "attention=full"], {}, "attention 'full': expected a model with cast-C"),
        (
            [*OVERRIDES, "attention=cast-3", "recipe.length=16"],
            {},
            "expected recipe.task=pathfinder, found ListOps",
        ),
        (
            ["recipe=copy", *OVERRIDES[1:7], "recipe.length=3"],
            {},
            "expected recipe.task=pathfinder, found masked copy",
        ),
        ([], {}, "config.yaml: expected the options of a run, found none"),
        (
            [*PATHFINDER, "attention=cast-3", "model.subsampling=2"],
            {},
            "expected a model whose positions are patches, found model.subsampling > 1",
        ),
        ([], {"head": 3}, "head=3: expected 1 to 2"),
    ],
)
def test_other_runs_are_refused(
    overrides: list[str], options: dict[str, int], message: str, folder: Path, tmp_path: Path
) -> None:
    if overrides:
        train(train_options([*overrides, f"run={tmp_path}"]))
    place = folder if options else tmp_path
    with pytest.raises(UserError, match=message):
        run(Options(run=str(place), items=1, **options))
