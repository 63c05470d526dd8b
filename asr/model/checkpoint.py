"""Checkpoints: atomic writing, reading without code execution, averaging."""

import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from asr.attention.backend import BACKENDS
from asr.attention.table import parse_name
from asr.config import option
from asr.environment import pick_device
from asr.errors import UserError
from asr.files import atomic_binary

log = logging.getLogger(__name__)

FORMAT = "clustered-asr 1"


@dataclass
class LoadOptions:
    """Options of the commands that load a recogniser."""

    attention: str = option("", help="attention mechanism; empty: the one used in training")
    backend: str = option(
        "auto", help="auto | reference (PyTorch) | native (compiled kernels)", choices=BACKENDS
    )
    checkpoint: str = option(
        "auto",
        help="auto (average, else best, else last) | average | best | last | name of a file in checkpoints/",
    )
    device: str = option("auto", help="auto | cpu | cuda | cuda:<number>")

    def check(self) -> None:
        """Raise UserError for an unknown mechanism, or a device that this machine doesn't have."""
        if self.attention:
            parse_name(self.attention)
        pick_device(self.device)


def save(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint atomically.

    Raises:
        OSError: the checkpoint can't be written, e.g. on a full disk; an existing `path` is unchanged.
    """
    with atomic_binary(path) as file:
        torch.save(dict(checkpoint), file)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint, unpickling tensors and plain data only.

    Raises:
        UserError: a file that is missing, truncated, of another format, or contains other objects.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(f"{path}: expected tensors and plain data only, found other objects") from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise UserError(
            f"{path}: expected a checkpoint, found a file that can't be read (truncated?)"
        ) from error
    if not isinstance(checkpoint, dict) or checkpoint.get("format") != FORMAT:
        raise UserError(f"{path}: expected a checkpoint of format {FORMAT!r}")
    return checkpoint


def find(path: Path, which: str = "auto") -> Path:
    """Return the checkpoint file of a run folder, or `path` itself where it is a file.

    Args:
        path: a run folder or a checkpoint file.
        which: `auto` (the average if there is one, else the best, else the last), `best`, `last`, or the
            name of a file in `checkpoints/` with or without its suffix.

    Raises:
        UserError: no such checkpoint, with those that exist.
    """
    if path.is_file():
        return path
    folder = path / "checkpoints"
    files = {file.stem: file for file in sorted(folder.glob("*.ckpt"))}
    if not files:
        raise UserError(f"{path}: no checkpoint (expected {folder}/*.ckpt)")
    best = sorted((stem for stem in files if stem.startswith("best-")), key=_error_rate)
    aliases = {stem: stem for stem in files}
    if best:
        aliases["best"] = best[0]
    if which == "auto":
        which = next(name for name in ("average", "best", "last", *files) if name in aliases)
    which = which.removesuffix(".ckpt")
    if which not in aliases:
        raise UserError(f"{path}: no checkpoint {which!r} (found: {', '.join(aliases)})")
    return files[aliases[which]]


def best_name(error_rate: float, step: int) -> str:
    """Return the stem of a best checkpoint; stems sort by error rate."""
    return f"best-{100 * error_rate:07.3f}-step{step:07d}"


def _error_rate(stem: str) -> float:
    return float(stem.split("-")[1])


def average(paths: list[Path]) -> dict[str, Any]:
    """Return a checkpoint with the mean weights of several (accumulated in float64).

    Raises:
        UserError: weights that differ in names or shapes.
    """
    checkpoints = [load(path) for path in paths]
    first = checkpoints[0]["model"]
    for path, checkpoint in zip(paths, checkpoints, strict=True):
        shapes = {name: x.shape for name, x in checkpoint["model"]["weights"].items()}
        if shapes != {name: x.shape for name, x in first["weights"].items()}:
            raise UserError(f"{path}: weights differ in names or shapes from {paths[0]}")
    weights = {}
    for name, value in first["weights"].items():
        if value.is_floating_point():
            stack = [checkpoint["model"]["weights"][name].double() for checkpoint in checkpoints]
            value = torch.stack(stack).mean(dim=0).to(value.dtype)
        weights[name] = value
    return {
        "format": FORMAT,
        "model": {**first, "weights": weights},
        "averaged": [path.name for path in paths],
    }


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint plugin on top of `save` and `load`.

    If a checkpoint can't be written, the failure is logged, the previous checkpoint is kept and training
    continues: a full disk may have room again for the next one.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write atomically; log a failure."""
        try:
            save(checkpoint, Path(path))
        except (OSError, RuntimeError) as error:
            log.error("%s could not be written (%s); the previous checkpoint is kept", path, error)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read without executing code."""
        return load(Path(path))
