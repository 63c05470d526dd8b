"""Long-range classification of items in files: miniatures of Long Range Arena's folders."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from asr_recipes.longrange.data import EvaluationBatches
from asr_recipes.longrange.folders import ListOpsFiles, PathfinderFolder
from asr_recipes.longrange.items import SPLITS
from asr_recipes.longrange.listops import SYMBOLS
from asr_recipes.longrange.task import build_source
from PIL import Image

from asr.errors import UserError
from asr.training.config import train_options
from asr.training.run import train

SMALL = ["recipe=longrange", "model.layers=1", "model.heads=2", "model.head_dim=8", "model.feedforward=16"]
SMALL += ["trainer.accelerator=cpu", "trainer.max_steps=2", "recipe.batch=4"]


def listops(folder: Path) -> Path:
    """Write the three files, with parentheses as in the public ones."""
    rows = ["( ( ( [MAX 4 ) ( ( ( [SM 9 ) 5 ) ] ) ) ] )\t4", "( ( ( ( [MED 1 ) 2 ) 4 ) ] )\t2"]
    for name, count in (("train", 5), ("val", 3), ("test", 1)):
        lines = ["Source\tTarget", *(rows[i % 2] for i in range(count))]
        (folder / f"basic_{name}.tsv").write_bytes("".join(f"{line}\r\n" for line in lines).encode())
    return folder


def pathfinder(folder: Path) -> Path:
    """Write 20 images of 16 × 16 pixels in two lists, the fourth one empty."""
    (folder / "metadata").mkdir()
    for part in (2, 10):
        (folder / "imgs" / str(part)).mkdir(parents=True)
        lines = []
        for i in range(10):
            path = folder / "imgs" / str(part) / f"sample_{i}.png"
            Image.fromarray(np.full((16, 16), 10 * i + part, dtype=np.uint8)).save(path)
            lines.append(f"imgs/{part} sample_{i}.png {i} {i % 2} 1.0 14 4 2 0.5 1 1\n")
        (folder / "metadata" / f"{part}.npy").write_text("".join(lines))
    (folder / "imgs/2/sample_3.png").write_bytes(b"")
    return folder


def test_listops_files_are_read(tmp_path: Path) -> None:
    source = ListOpsFiles(listops(tmp_path), 20)
    assert [source.count(split) for split in SPLITS] == [5, 3, 1]
    item = source.item("train", 2)
    assert [SYMBOLS[i] for i in item.sequence] == ["[MAX", "4", "[SM", "9", "5", "]", "]"]
    assert item.label == 4
    assert source.item("dev", 1).label == 2


def test_pathfinder_images_are_read_and_divided(tmp_path: Path) -> None:
    source = PathfinderFolder(pathfinder(tmp_path), 16)
    assert source.left_out == 1
    assert "1 empty files left out" in source.describe()
    assert [source.count(split) for split in SPLITS] == [15, 2, 2]
    items = [source.item(split, i) for split in SPLITS for i in range(source.count(split))]
    values = [10 * i + part for part in (2, 10) for i in range(10) if (part, i) != (2, 3)]
    assert [int(item.sequence[0]) for item in items] == values
    assert [item.label for item in items] == [
        i % 2 for part in (2, 10) for i in range(10) if (part, i) != (2, 3)
    ]
    assert items[0].length == 256


@pytest.mark.parametrize(
    ("task", "write", "overrides"),
    [
        ("listops", listops, ["recipe.length=20"]),
        ("pathfinder", pathfinder, ["recipe.size=16"]),
    ],
)
def test_every_task_trains(
    task: str, write: Callable[[Path], Path], overrides: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    given = [
        *SMALL,
        f"recipe.task={task}",
        f"recipe.folder={write(folder)}",
        *overrides,
        "recipe.dev_items=3",
    ]
    train(train_options([*given, f"run={tmp_path / 'run'}", "attention=cast-3"]))
    assert (tmp_path / "run" / "training.json").exists()


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    """So few images that none was left for tests once gave 1,000 test items."""
    folder = pathfinder(tmp_path)
    lines = (folder / "metadata/2.npy").read_text().splitlines(keepends=True)
    (folder / "metadata/2.npy").write_text("".join(lines[:3]))
    (folder / "metadata/10.npy").unlink()
    with pytest.raises(UserError, match="split test: expected items, found none"):
        EvaluationBatches(PathfinderFolder(folder, 16), "test", 4, 0)


def break_listops(folder: Path) -> None:
    (folder / "basic_train.tsv").write_text("Source\tTarget\n( [MAX 4 )\t4\n[MOD 4 ]\t4\n")


@pytest.mark.parametrize(
    ("task", "write", "damage", "message"),
    [
        ("listops", listops, break_listops, r"basic_train\.tsv:3: expected an expression"),
        (
            "listops",
            listops,
            lambda x: (x / "basic_val.tsv").unlink(),
            r"basic_val\.tsv: expected a file of Long",
        ),
        ("listops", listops, lambda x: (x / "basic_val.tsv").write_text("a\tb\n"), "expected the header"),
        (
            "listops",
            listops,
            lambda x: (x / "basic_val.tsv").write_text("Source\tTarget\n"),
            "expected lines",
        ),
        (
            "pathfinder",
            pathfinder,
            lambda x: (x / "metadata/2.npy").write_text("a b\n"),
            r"2\.npy:1: expected folder",
        ),
        (
            "pathfinder",
            pathfinder,
            lambda x: (x / "imgs/10/sample_2.png").unlink(),
            r"sample_2\.png: expected an im",
        ),
        (
            "pathfinder",
            pathfinder,
            lambda x: (x / "imgs/2/sample_0.png").write_bytes(b"x"),
            r"sample_0\.png: exp",
        ),
        (
            "pathfinder",
            pathfinder,
            lambda x: Image.new("L", (8, 9)).save(x / "imgs/2/sample_0.png"),
            "expected recipe.size=16 pixels per side, found 9 × 8",
        ),
        (
            "pathfinder",
            pathfinder,
            lambda x: [path.write_text("") for path in (x / "metadata").iterdir()],
            "metadata: expected images, found none",
        ),
    ],
)
def test_damaged_files_are_refused_in_one_line(
    task: str, write: Callable[[Path], Path], damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    damage(write(tmp_path))
    overrides = ["recipe=longrange", f"recipe.task={task}", f"recipe.folder={tmp_path}"]
    overrides += ["recipe.size=16"] if task == "pathfinder" else []
    with pytest.raises(UserError, match=message):
        read_training_items(overrides)


def read_training_items(overrides: list[str]) -> None:
    source = build_source(train_options(overrides).recipe, 0)
    for index in range(source.count("train")):
        source.item("train", index)
