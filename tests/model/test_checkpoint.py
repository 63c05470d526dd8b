"""Checkpoints: writing, reading, averaging and finding them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from asr.errors import UserError
from asr.model import checkpoint


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 truncated", b"\x80\x02 not a checkpoint"])
def test_an_unreadable_checkpoint_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.ckpt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"broken\.ckpt"):
        checkpoint.load(path)


def test_a_checkpoint_of_another_program_is_rejected(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    with pytest.raises(UserError, match="expected a checkpoint of format"):
        checkpoint.load(tmp_path / "foreign.ckpt")


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    """A process with a file size limit of 64 KiB stands for a full disk."""
    path = tmp_path / "last.ckpt"
    checkpoint.save({"format": checkpoint.FORMAT, "value": 1}, path)
    code = (
        "import resource, signal, torch, sys; from pathlib import Path; from asr.model import checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "state = {'format': checkpoint.FORMAT, 'value': torch.zeros(10**6)}\n"
        "checkpoint.AtomicCheckpointIO().save_checkpoint(state, sys.argv[1])\n"
        "try: checkpoint.save(state, Path(sys.argv[1]))\n"
        "except (OSError, RuntimeError): sys.exit(7)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert result.returncode == 7, result.stderr
    assert "could not be written" in result.stderr
    assert checkpoint.load(path)["value"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_average_returns_the_mean_of_the_weights(trained: Path, tmp_path: Path) -> None:
    source = checkpoint.find(trained, "last")
    state = checkpoint.load(source)
    for factor in (1.0, 3.0):
        weights = {
            name: x * factor if x.is_floating_point() else x for name, x in state["model"]["weights"].items()
        }
        changed = {"format": checkpoint.FORMAT, "model": {**state["model"], "weights": weights}}
        checkpoint.save(changed, tmp_path / f"{factor}.ckpt")
    mean = checkpoint.average([tmp_path / "1.0.ckpt", tmp_path / "3.0.ckpt"])["model"]["weights"]
    for name, x in state["model"]["weights"].items():
        assert torch.allclose(mean[name], 2 * x if x.is_floating_point() else x)


def test_find_prefers_average_then_best_then_last(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    expected = "last"
    for name in ("last", checkpoint.best_name(0.31, 900), checkpoint.best_name(0.092, 1000), "average"):
        (folder / f"{name}.ckpt").touch()
        expected = name
        assert checkpoint.find(tmp_path).stem == expected
    assert checkpoint.find(tmp_path, "best").stem == checkpoint.best_name(0.092, 1000)
    assert checkpoint.find(tmp_path, "last.ckpt").stem == "last"
    with pytest.raises(UserError, match="no checkpoint 'newest' \\(found: average, best-"):
        checkpoint.find(tmp_path, "newest")
