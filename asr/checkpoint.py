"""Checkpoints: written atomically, read without running code, averaged."""

import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from asr.errors import UserError
from asr.files import atomic_binary

log = logging.getLogger(__name__)

FORMAT = "clustered-asr 1"


def save(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint so that `path` is either the old one or the whole new one.

    Raises:
        OSError: the disk is full, say; what was at `path` before is still there.
    """
    with atomic_binary(path) as file:
        torch.save(dict(checkpoint), file)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; nothing but tensors and plain data is ever unpickled.

    Raises:
        UserError: missing, truncated, not one of ours, or holding anything that would run code.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(f"{path}: refused: it holds more than tensors and plain data") from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable checkpoint (truncated?)") from error
    if not isinstance(checkpoint, dict) or checkpoint.get("format") != FORMAT:
        raise UserError(f"{path}: not a checkpoint of this program (expected format {FORMAT!r})")
    return checkpoint


def find(path: Path, which: str = "auto") -> Path:
    """Return the checkpoint file of a run folder, or `path` itself where it is a file.

    Args:
        path: a run folder or a checkpoint file.
        which: `auto` (average where there is one, else best, else last), `best`, `last`, or the
            name of a file in `checkpoints/` with or without its suffix.

    Raises:
        UserError: nothing there; the message lists what is.
    """
    if path.is_file():
        return path
    folder = path / "checkpoints"
    files = {file.stem: file for file in sorted(folder.glob("*.ckpt"))}
    if not files:
        raise UserError(f"{path}: no checkpoint below (expected {folder}/*.ckpt)")
    best = sorted((stem for stem in files if stem.startswith("best-")), key=_error_rate)
    aliases = {stem: stem for stem in files}
    if best:
        aliases["best"] = best[0]
    if which == "auto":
        which = next(name for name in ("average", "best", "last", *files) if name in aliases)
    which = which.removesuffix(".ckpt")
    if which not in aliases:
        raise UserError(f"{path}: no checkpoint {which!r} (there are: {', '.join(aliases)})")
    return files[aliases[which]]


def best_name(error_rate: float, step: int) -> str:
    """Return the stem of a best checkpoint, which sorts by its error rate."""
    return f"best-{100 * error_rate:07.3f}-step{step:07d}"


def _error_rate(stem: str) -> float:
    return float(stem.split("-")[1])


def average(paths: list[Path]) -> dict[str, Any]:
    """Return a checkpoint whose weights are the mean of several (accumulated in float64).

    Raises:
        UserError: they are not checkpoints of one model.
    """
    checkpoints = [load(path) for path in paths]
    first = checkpoints[0]["recognizer"]
    for path, checkpoint in zip(paths, checkpoints, strict=True):
        shapes = {name: x.shape for name, x in checkpoint["recognizer"]["weights"].items()}
        if shapes != {name: x.shape for name, x in first["weights"].items()}:
            raise UserError(f"{path}: weights differ in names or shapes from {paths[0]}")
    weights = {}
    for name, value in first["weights"].items():
        if value.is_floating_point():
            stack = [checkpoint["recognizer"]["weights"][name].double() for checkpoint in checkpoints]
            value = torch.stack(stack).mean(dim=0).to(value.dtype)
        weights[name] = value
    return {
        "format": FORMAT,
        "recognizer": {**first, "weights": weights},
        "averaged": [path.name for path in paths],
    }


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's reading and writing of checkpoints through `save` and `load`.

    A checkpoint that can't be written is reported and training goes on: the previous one survives,
    and a full disk may have room again at the next one.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write atomically; log what prevents it."""
        try:
            save(checkpoint, Path(path))
        except (OSError, RuntimeError) as error:
            log.error("%s could not be written (%s); the previous checkpoint is kept", path, error)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read without running code."""
        return load(Path(path))
