"""Checkpoints: writing, reading, averaging and finding them."""

import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import in_a_fork

from asr.errors import UserError
from asr.model import checkpoint
from asr.records.run_folder import RunFolder, best_name
from asr.training.checkpoints import AtomicCheckpointIO


def model(**weights: torch.Tensor) -> dict[str, Any]:
    return {"format": checkpoint.FORMAT, "model": {"config": {}, "weights": weights}}


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 truncated", b"\x80\x02 not a checkpoint", b"text\n"])
def test_an_unreadable_checkpoint_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.ckpt"
    path.write_bytes(content)
    with pytest.raises(
        UserError, match=r"broken\.ckpt: expected a checkpoint, found a file that can't be read"
    ):
        checkpoint.load(path)


def test_an_exported_graph_is_no_damaged_checkpoint(tmp_path: Path) -> None:
    """`asr transcribe model.onnx x.wav` called an intact file truncated or damaged."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"sound")
    with pytest.raises(UserError, match=r"model\.onnx: expected a checkpoint, or a folder .*, found a graph"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state_dict": {}}, "expected a checkpoint of format"),
        (["format"], "expected a checkpoint of format"),
    ],
)
def test_files_of_other_programs_are_rejected(content: object, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(UserError, match=rf"other\.ckpt: {message}"):
        checkpoint.load(tmp_path / "other.ckpt")


def test_changed_bytes_are_noticed(tmp_path: Path) -> None:
    """PyTorch doesn't check the checksums in its files: a changed weight was used."""
    path = tmp_path / "flipped.ckpt"
    checkpoint.save(model(a=torch.randn(3000)), path)
    content = path.read_bytes()
    random = np.random.default_rng(0)
    noticed = 0
    for place in [*random.integers(len(content), size=200), len(content) // 2]:
        changed = bytearray(content)
        changed[place] ^= 1 << int(random.integers(8))
        path.write_bytes(changed)
        try:
            found = checkpoint.load(path)
        except UserError:
            noticed += 1
        else:  # padding between tensors, or a time stamp
            path.write_bytes(content)
            assert torch.equal(found["model"]["weights"]["a"], checkpoint.load(path)["model"]["weights"]["a"])
    assert noticed > 150


def test_the_previous_checkpoint_is_kept(tmp_path: Path) -> None:
    writer = AtomicCheckpointIO()
    for value in range(3):
        writer.save_checkpoint(model(a=torch.tensor(float(value))), tmp_path / "last.ckpt")
    found = [
        float(checkpoint.load(tmp_path / f"{x}.ckpt")["model"]["weights"]["a"]) for x in ("previous", "last")
    ]
    assert found == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.ckpt", "previous.ckpt"]


def save_on_a_full_disk(path: Path, said: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    state = {"format": checkpoint.FORMAT, "value": torch.zeros(10**6)}
    with said.open("w") as file:
        for save in (AtomicCheckpointIO().save_checkpoint, checkpoint.save):
            try:
                save(state, path)
            except UserError as error:
                print(error, file=file)


@pytest.mark.slow
def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    """A process with a file size limit of 64 KiB stands for a full disk."""
    path = tmp_path / "last.ckpt"
    checkpoint.save({"format": checkpoint.FORMAT, "value": 1}, path)
    assert in_a_fork(save_on_a_full_disk, path, said := tmp_path.with_suffix(".txt")) == 0
    assert said.read_text() == 2 * f"{path}: the checkpoint can't be written (File too large)\n"
    assert torch.load(path)["value"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_signal_while_writing_is_not_taken_for_a_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data-loading process that died then was reported as a checkpoint that can't be written."""

    def interrupted(*args: Any) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(RuntimeError, match=r"^DataLoader worker"):
        checkpoint.save({}, tmp_path / "last.ckpt")


@pytest.mark.slow
def test_average_returns_the_mean_of_the_weights(trained: Path, tmp_path: Path) -> None:
    source = checkpoint.find(trained, "last")
    state = checkpoint.load(source)
    for factor in (1.0, 3.0):
        weights = {
            name: x * factor if x.is_floating_point() else x for name, x in state["model"]["weights"].items()
        }
        changed = {"format": checkpoint.FORMAT, "model": {**state["model"], "weights": weights}}
        checkpoint.save(changed, tmp_path / f"{factor}.ckpt")
    mean = checkpoint.average_checkpoints([tmp_path / "1.0.ckpt", tmp_path / "3.0.ckpt"])["model"]["weights"]
    for name, x in state["model"]["weights"].items():
        assert torch.allclose(mean[name], 2 * x if x.is_floating_point() else x)


def test_find_prefers_average_then_best_then_last(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    expected = "last"
    for name in ("last", best_name(0.31, 1.0, 900), best_name(0.092, 2.0, 1000), "average"):
        (folder / f"{name}.ckpt").touch()
        expected = name
        assert checkpoint.find(tmp_path).stem == expected
    assert checkpoint.find(tmp_path, "best").stem == best_name(0.092, 2.0, 1000)
    assert checkpoint.find(tmp_path, "last.ckpt").stem == "last"
    with pytest.raises(UserError, match="no checkpoint 'newest' \\(found: average, best-"):
        checkpoint.find(tmp_path, "newest")


def test_names_of_best_checkpoints_sort_by_measures_above_10() -> None:
    """Bits per token of a large vocabulary are above 10, and 10.2 came before 9.5."""
    values = [0.0, 0.092, 0.31, 1.0, 9.5, 10.2, 16.6]
    names = [best_name(value, 1.0, 100) for value in values]
    assert sorted(names) == names


def test_of_equal_error_rates_the_lower_loss_is_best(tmp_path: Path) -> None:
    """The first checkpoint stayed the best while nothing was recognised: untrained weights were decoded.

    Of negative losses, whose names were compared as text, the highest was best.
    """
    losses = [float("-inf"), -12.5, -2.25, -1.0, 0.5, 2.25, 10.5, 700.0, float("inf")]
    paths = [tmp_path / "checkpoints" / f"{best_name(1.0, x, 900 - i)}.ckpt" for i, x in enumerate(losses)]
    paths[0].parent.mkdir()
    for path in reversed(paths):
        path.touch()
        assert checkpoint.find(tmp_path, "best") == path
    assert RunFolder(tmp_path).best() == paths
    assert best_name(1.0, float("nan"), 5) == best_name(1.0, float("inf"), 5)
