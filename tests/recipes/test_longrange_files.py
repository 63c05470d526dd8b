"""Long-range classification of items in files: miniatures of Long Range Arena's folders, and texts."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from asr_recipes.longrange.data import EvaluationBatches, collate
from asr_recipes.longrange.folders import ListOpsFiles, PairFiles, PathfinderFolder
from asr_recipes.longrange.items import SPLITS
from asr_recipes.longrange.listops import SYMBOLS
from asr_recipes.longrange.task import build_model, build_source
from asr_recipes.longrange.text import PassagePairs, TextFolder
from PIL import Image

from asr.cli import main
from asr.data.sampler import BatchPlan
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


def pairs(folder: Path) -> Path:
    lines = [b'"1.0"\t"a"\t"b"\t"one text"\t"another one"\n', b"0.0\tc\td\t\xc3\xa9t\xc3\xa9\tx\n"]
    for name in ("train", "eval"):
        (folder / f"new_aan_pairs.{name}.tsv").write_bytes(b"".join(lines * 4))
    return folder


def texts(folder: Path) -> Path:
    """Write texts of two labels for training and tests, and training texts without a label."""
    for split, label in (
        ("train", "neg"),
        ("train", "pos"),
        ("train", "unsup"),
        ("test", "neg"),
        ("test", "pos"),
    ):
        (folder / split / label).mkdir(parents=True)
        for i in range(40):
            (folder / split / label / f"{i}.txt").write_text(f"{split} {label} {i}")
    return folder


def passages(folder: Path) -> Path:
    """Write 60 files: file i consists of the byte i."""
    for i in range(60):
        (folder / f"{i}.txt").write_bytes(bytes([i]) * (100 + i))
    (folder / "short.txt").write_bytes(b"x")
    return folder


def test_listops_files_are_read(tmp_path: Path) -> None:
    source = ListOpsFiles(listops(tmp_path), 20)
    assert [source.count(split) for split in SPLITS] == [5, 3, 1]
    item = source.item("train", 2)
    assert [SYMBOLS[i] for i in item.sequences[0]] == ["[MAX", "4", "[SM", "9", "5", "]", "]"]
    assert item.label == 4
    assert source.item("dev", 1).label == 2


def test_pathfinder_images_are_read_and_divided(tmp_path: Path) -> None:
    source = PathfinderFolder(pathfinder(tmp_path), 16)
    assert source.left_out == 1
    assert "1 empty files left out" in source.describe()
    assert [source.count(split) for split in SPLITS] == [15, 2, 2]
    items = [source.item(split, i) for split in SPLITS for i in range(source.count(split))]
    values = [10 * i + part for part in (2, 10) for i in range(10) if (part, i) != (2, 3)]
    assert [int(item.sequences[0][0]) for item in items] == values
    assert [item.label for item in items] == [
        i % 2 for part in (2, 10) for i in range(10) if (part, i) != (2, 3)
    ]
    assert items[0].length == 256


def test_pairs_are_read(tmp_path: Path) -> None:
    source = PairFiles(pairs(tmp_path), 8)
    assert [bytes(x) for x in source.item("train", 0).sequences] == [b"one text", b"another "]
    assert [bytes(x) for x in source.item("dev", 1).sequences] == ["été".encode(), b"x"]
    assert [source.item("train", i).label for i in range(4)] == [1, 0, 1, 0]


def test_texts_are_labelled_by_their_folder(tmp_path: Path) -> None:
    source = TextFolder(texts(tmp_path), 11)
    assert source.labels == ["neg", "pos"]
    found = {
        split: {
            (bytes(item.sequences[0]), item.label)
            for item in (source.item(split, i) for i in range(source.count(split)))
        }
        for split in SPLITS
    }
    for split, place in (("train", b"train"), ("dev", b"train"), ("test", b"test")):
        for text, label in found[split]:
            assert text.startswith(place + (b" neg ", b" pos ")[label])


def test_without_development_texts_they_are_from_train(tmp_path: Path) -> None:
    """They were those of test, so that the best checkpoint was chosen on the texts that measure it."""
    folder = texts(tmp_path)
    source = TextFolder(folder, 20)
    train, dev, test = ({path for path, _ in source.files[split]} for split in SPLITS)
    assert train | dev == {path for label in ("neg", "pos") for path in (folder / "train" / label).iterdir()}
    assert not train & dev
    assert 2 <= len(dev) <= 16
    assert test == {path for label in ("neg", "pos") for path in (folder / "test" / label).iterdir()}
    for label in ("neg", "pos"):
        (folder / "val" / label).mkdir(parents=True)
        (folder / "val" / label / "0.txt").write_text("x")
    own = TextFolder(folder, 20)
    assert [own.count(split) for split in SPLITS] == [80, 2, 80]


def test_packed_texts_are_unpacked(tmp_path: Path) -> None:
    """In /usr/share/doc, two fifths of the texts are packed; their packed bytes were taken for texts."""
    folder = texts(tmp_path)
    for path in sorted(folder.rglob("*.txt")):
        path.with_suffix(".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    source = TextFolder(folder, 11)
    assert bytes(source.item("train", 0).sequences[0]) == b"train neg 0"
    (folder / "train" / "neg" / "0.gz").write_bytes(b"not packed")
    with pytest.raises(UserError, match=r"train/neg/0\.gz: expected a whole gzip file, found a broken one"):
        source.item("train", 0)


def test_texts_without_splits_are_divided_by_name(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label / "deep").mkdir(parents=True)
        passages(tmp_path / label / "deep")
    source = TextFolder(tmp_path, 50)
    counts = [source.count(split) for split in SPLITS]
    assert sum(counts) == 122
    assert min(counts) > 3
    assert counts[0] > 80
    paths = [path for split in SPLITS for path, _ in source.files[split]]
    assert len(set(paths)) == 122


def test_passages_are_from_one_file_or_from_two(tmp_path: Path) -> None:
    source = PassagePairs(passages(tmp_path), 20, seed=0)
    files: dict[str, set[int]] = {}
    for split in SPLITS:
        labels = []
        for index in range(40):
            one, other = source.item(split, index).sequences
            assert len(one) == len(other) == 20
            assert int(one[0] == other[0]) == source.item(split, index).label
            labels.append(source.item(split, index).label)
            files.setdefault(split, set()).update((int(one[0]), int(other[0])))
        assert 10 < sum(labels) < 30
    assert not files["train"] & (files["dev"] | files["test"])
    assert not files["dev"] & files["test"]


def test_the_order_of_a_pair_counts_and_its_length_does_not(tmp_path: Path) -> None:
    overrides = [*SMALL, "recipe.task=retrieval", "recipe.length=16", f"recipe.folder={pairs(tmp_path)}"]
    options = train_options(overrides)
    source = build_source(options.recipe, 0)
    model = build_model(options, source).eval()
    batch = collate([source.item("train", i) for i in range(2)], BatchPlan(()), size=30)
    logits = model(batch.values, batch.lengths)
    assert logits.shape == (2, 2)
    for i in range(2):
        alone = collate([source.item("train", i)], BatchPlan(()))
        torch.testing.assert_close(model(alone.values, alone.lengths)[0], logits[i])
    swapped = model(batch.values[[1, 0, 2, 3]], batch.lengths[[1, 0, 2, 3]])
    assert (swapped[0] - logits[0]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("task", "write", "overrides"),
    [
        ("listops", listops, ["recipe.length=20"]),
        ("pathfinder", pathfinder, ["recipe.size=16"]),
        ("text", texts, ["recipe.length=20"]),
        ("retrieval", pairs, ["recipe.length=20"]),
        ("retrieval", passages, ["recipe.length=20"]),
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
        (
            "retrieval",
            pairs,
            lambda x: (x / "new_aan_pairs.train.tsv").write_text("1\tx\n"),
            r"tsv:1: expected a la",
        ),
        ("retrieval", texts, lambda x: None, "expected two files of 32 bytes for train, found 0"),
        ("text", texts, lambda x: [path.unlink() for path in (x / "test/pos").iterdir()], "2 to 256 labels"),
        ("text", passages, lambda x: None, "expected 2 to 256 labels with texts to evaluate, found 0"),
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


@pytest.mark.parametrize("task", ["text", "retrieval"])
def test_a_folder_of_texts_is_needed(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "recipe=longrange", f"recipe.task={task}"]) == 1
    assert "recipe.folder=: expected a folder of texts" in capsys.readouterr().err
    assert main(["train", "recipe=longrange", f"recipe.task={task}", f"recipe.folder={tmp_path}/no"]) == 1
    assert "no: expected" in capsys.readouterr().err
