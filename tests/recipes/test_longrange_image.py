"""The Image task: generated shapes, CIFAR-10's files, folders of pictures."""

from pathlib import Path

import numpy as np
import pytest
from asr_recipes.longrange.data import EvaluationBatches
from asr_recipes.longrange.image import SHAPES, CifarFiles, PictureFolder, Shapes, image_source
from PIL import Image

from asr.errors import UserError
from asr.training.config import train_options
from asr.training.run import train

GRID = (np.mgrid[0:20, 0:20] + 0.5) / 10 - 1


def recognised(grey: np.ndarray) -> str:
    """Return the shape whose picture is most like that within the bounds of what differs from the border."""
    border = np.concatenate((grey[0], grey[-1], grey[:, 0], grey[:, -1]))
    differs = abs(grey.astype(float) - np.median(border)) > 30
    rows, columns = (np.flatnonzero(differs.any(axis=axis)) for axis in (1, 0))
    found = differs[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    picture = Image.fromarray(found.astype(np.uint8) * 255).resize((20, 20))
    scores = {}
    for name, shape in SHAPES.items():
        drawn = shape(*GRID)
        bounds = [np.flatnonzero(drawn.any(axis=axis)) for axis in (1, 0)]
        cut = drawn[bounds[0][0] : bounds[0][-1] + 1, bounds[1][0] : bounds[1][-1] + 1]
        expected = np.array(Image.fromarray(cut.astype(np.uint8) * 255).resize((20, 20)))
        scores[name] = abs(expected.astype(float) - np.array(picture)).mean()
    return min(scores, key=lambda name: scores[name])


def test_shapes_show_their_label() -> None:
    source = Shapes(32, seed=0)
    items = [source.item("train", index) for index in range(200)]
    right = [recognised(x.sequences[0].reshape(32, 32)) == list(SHAPES)[x.label] for x in items]
    assert np.mean(right) > 0.9
    assert {x.label for x in items} == set(range(10))


def test_shapes_depend_on_split_seed_and_number_alone() -> None:
    def pixels(seed: int, split: str, index: int) -> bytes:
        return bytes(Shapes(16, seed).item(split, index).sequences[0])

    drawn = [pixels(0, "train", 5), pixels(1, "train", 5), pixels(0, "train", 6), pixels(0, "dev", 5)]
    assert len({*drawn, pixels(0, "test", 5)}) == 5
    assert pixels(0, "train", 5) == drawn[0]
    assert pixels(1, "dev", 5) == drawn[3]


def cifar(folder: Path) -> Path:
    """Write 20 training and 4 test pictures; picture i has label i mod 10 and one colour."""
    colours = ((255, 255, 255), (255, 0, 0), (0, 255, 0), (0, 0, 255), (10, 20, 30))
    records = [bytes([i % 10]) + b"".join(bytes([x]) * 1024 for x in colours[i % 5]) for i in range(24)]
    for number in range(5):
        (folder / f"data_batch_{number + 1}.bin").write_bytes(b"".join(records[4 * number : 4 * number + 4]))
    (folder / "test_batch.bin").write_bytes(b"".join(records[20:]))
    return folder


def test_cifar_is_read_in_grey_and_divided(tmp_path: Path) -> None:
    source = image_source(str(cifar(tmp_path)), 32, seed=0)
    assert isinstance(source, CifarFiles)
    assert [source.count(split) for split in ("train", "dev", "test")] == [18, 2, 4]
    items = [source.item("train", i) for i in range(5)]
    # TensorFlow's rgb_to_grayscale of the same colours
    assert [int(x.sequences[0][0]) for x in items] == [255, 76, 149, 29, 18]
    assert all(len(set(x.sequences[0].tolist())) == 1 and len(x.sequences[0]) == 1024 for x in items)
    assert [x.label for x in items] == [0, 1, 2, 3, 4]
    assert [source.item("dev", i).label for i in range(2)] == [8, 9]
    assert [source.item("test", i).label for i in range(4)] == [0, 1, 2, 3]
    assert source.digest("train") == source.digest("dev") != source.digest("test")


def pictures(folder: Path) -> Path:
    """Write 40 pictures of two labels, black ones and white ones, beside another file."""
    for label, grey in (("black", 0), ("white", 255)):
        (folder / label).mkdir()
        for i in range(40):
            Image.new("RGB", (40, 30), (grey,) * 3).save(folder / label / f"{i}.png")
        (folder / label / "list.txt").write_text("x")
    return folder


def test_folders_of_pictures_are_read_in_grey_and_scaled(tmp_path: Path) -> None:
    source = image_source(str(pictures(tmp_path)), 16, seed=0)
    assert isinstance(source, PictureFolder)
    assert source.labels == ["black", "white"]
    assert sum(source.count(split) for split in ("train", "dev", "test")) == 80
    for split in ("train", "dev", "test"):
        for index in range(source.count(split)):
            item = source.item(split, index)
            assert item.sequences[0].tolist() == [255 * item.label] * 256
    (tmp_path / "white" / "3.png").write_bytes(b"x")
    with pytest.raises(UserError, match=r"white/3\.png: expected an image"):
        [source.item(split, i) for split in source.files for i in range(source.count(split))]


def test_pictures_of_16_bits_are_scaled_and_of_32_bits_refused(tmp_path: Path) -> None:
    """Pictures of 16 bits, e.g. from a scanner, were clipped to white."""
    pictures(tmp_path)
    grey = np.arange(256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(257 * grey).save(tmp_path / "white" / "3.png")
    Image.fromarray(257 * grey).save(tmp_path / "white" / "4.tiff")
    source = PictureFolder(tmp_path, 16)
    found = {
        path.name: (split, index)
        for split, files in source.files.items()
        for index, (path, label) in enumerate(files)
        if label
    }
    for name in ("3.png", "4.tiff"):
        assert source.item(*found[name]).sequences[0].tolist() == list(range(256))
    for kind in (np.float32, np.int32):
        Image.fromarray(grey.astype(kind)).save(tmp_path / "white" / "4.tiff")
        with pytest.raises(UserError, match=r"4\.tiff: expected a picture of 8 or 16 bits, found mode"):
            source.item(*found["4.tiff"])


@pytest.mark.parametrize(
    ("damage", "size", "message"),
    [
        (
            lambda x: (x / "test_batch.bin").unlink(),
            32,
            r"test_batch\.bin: expected a binary file of CIFAR-10",
        ),
        (
            lambda x: (x / "data_batch_2.bin").write_bytes(b"123"),
            32,
            r"data_batch_2.*3,073 bytes each, found 3",
        ),
        (
            lambda x: (x / "data_batch_3.bin").write_bytes(b"\x0b" * 3073),
            32,
            "expected labels 0 to 9, found 11",
        ),
        (lambda x: None, 16, "recipe.size=16: expected 32"),
        (lambda x: (x / "data_batch_1.bin").unlink(), 32, "expected 2 to 256 labels with images"),
    ],
)
def test_damaged_files_of_cifar_are_refused_in_one_line(
    damage: object, size: int, message: str, tmp_path: Path
) -> None:
    damage(cifar(tmp_path))  # type: ignore[operator]
    with pytest.raises(UserError, match=message):
        image_source(str(tmp_path), size, seed=0)


@pytest.mark.parametrize("write", [None, cifar, pictures])
def test_a_model_trains_on_images(write: object, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    place = "" if write is None else str(write(folder))  # type: ignore[operator]
    given = ["recipe=longrange", "recipe.task=image", f"recipe.folder={place}", "recipe.patch=4"]
    given += ["model.layers=1", "model.heads=2", "model.head_dim=8", "model.feedforward=16", "recipe.batch=2"]
    given += ["recipe.dev_items=2", "trainer.max_steps=1", "trainer.accelerator=cpu", "attention=cast-3"]
    train(train_options([*given, f"run={tmp_path / 'run'}"]))
    assert (tmp_path / "run" / "training.json").exists()


def test_the_test_split_is_evaluated(tmp_path: Path) -> None:
    batches = EvaluationBatches(CifarFiles(cifar(tmp_path), 32), "test", 3, 0)
    assert [len(batches[i].labels) for i in range(len(batches))] == [3, 1]
