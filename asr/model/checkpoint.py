"""Checkpoints: atomic writing, reading without code execution, averaging, and the run that wrote them."""

import os
import pickle
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.errors import UserError
from asr.files import atomic_binary
from asr.records.run_folder import RunFolder

FORMAT = "clustered-asr 1"


def save(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint atomically.

    Raises:
        UserError: the checkpoint can't be written, e.g. on a full disk; an existing `path` is unchanged.
    """
    try:
        with atomic_binary(path) as file:
            torch.save(dict(checkpoint), file)
    except (OSError, RuntimeError) as error:
        # PyTorch's error hides the file's.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):  # raised by a signal handler, e.g. for a dead data-loading process
            raise
        raise UserError(f"{path}: the checkpoint can't be written ({cause.strerror})") from error


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint, unpickling tensors and plain data only.

    Raises:
        UserError: the file is missing, truncated, changed, in another format, or contains other objects.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint")
    if path.suffix in (".onnx", ".pt2"):
        raise UserError(
            f"{path}: expected a checkpoint, or a folder by `asr export`, found a graph for other programs"
        )
    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch writes checksums, but doesn't read them
            damaged = archive.testzip()
        if damaged is None:
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError:
        raise
    except pickle.UnpicklingError as error:
        raise UserError(f"{path}: expected tensors and plain data only, found other objects") from error
    except Exception as error:  # a damaged file raises anything
        raise UserError(
            f"{path}: expected a checkpoint, found a file that can't be read "
            f"({'truncated or damaged?' if path.suffix == '.ckpt' else 'of another kind, or damaged?'})"
        ) from error
    if damaged is not None:
        raise UserError(f"{path}: expected a checkpoint as it was written, found changed bytes in {damaged}")
    if not isinstance(checkpoint, dict) or checkpoint.get("format") != FORMAT:
        raise UserError(f"{path}: expected a checkpoint of format {FORMAT!r}")
    return checkpoint


def check_shapes(wanted: Mapping[str, Tensor], stored: Mapping[str, Tensor], where: str) -> None:
    """Raise UserError unless `found` has the names and shapes of `wanted`; `where` begins the message."""
    for name in [*wanted, *stored]:
        shape, other = (list(x[name].shape) if name in x else "none" for x in (wanted, stored))
        if shape != other:
            expected = f"{name} of shape {shape}" if name in wanted else f"no {name}"
            raise UserError(f"{where}: expected {expected}, found {other}")


@contextmanager
def also_named(path: Path, name: str) -> Iterator[None]:
    """Give a file a second name in its folder, in place of another file, if the block succeeds.

    The block may replace the file.
    """
    temporary = path.with_name(f"{name}.partial")
    temporary.unlink(missing_ok=True)
    try:
        try:
            os.link(path, temporary)
        except OSError:  # no hard links on this file system
            shutil.copyfile(path, temporary)
        yield
        temporary.replace(path.with_name(name))
    finally:
        temporary.unlink(missing_ok=True)  # renaming does nothing if both names are the same file


def recorded_run(folder: Path) -> str:
    """Return the identity that a run's environment.json and checkpoints share; empty if there is none."""
    try:
        return RunFolder(folder).read_environment().run
    except UserError:
        return ""


def foreign(folder: Path) -> Path | None:
    """Return a checkpoint in a run folder that can't be read or belongs to another run, or None.

    Example:
        >>> foreign(Path("nowhere")) is None
        True
    """
    run = recorded_run(folder)
    for path in RunFolder(folder).saved():
        try:  # mapped into memory, so that tensors aren't read
            checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            same = checkpoint.get("run", "") == run
        except Exception:  # a damaged file raises anything
            same = False
        if not same:
            return path
    return None


def find(path: Path, which: str = "auto") -> Path:
    """Return a checkpoint file of a run folder, or `path` itself if it is a file.

    Args:
        path: a run folder or a checkpoint file.
        which: see `RunFolder.checkpoint`.

    Raises:
        UserError: the checkpoint doesn't exist; the message lists existing ones.
    """
    return path if path.is_file() else RunFolder(path).checkpoint(which)


def average_checkpoints(paths: list[Path]) -> dict[str, Any]:
    """Return a checkpoint with the mean weights of several, accumulated in float64.

    Raises:
        UserError: the checkpoints belong to several runs, or weights differ in names or shapes.
    """
    checkpoints = [load(path) for path in paths]
    first, run = checkpoints[0]["model"], checkpoints[0].get("run", "")
    for path, checkpoint in zip(paths, checkpoints, strict=True):
        if checkpoint.get("run", "") != run:
            raise UserError(f"{path}: expected a checkpoint of the same run as {paths[0]}")
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
        "run": run,
        "model": {**first, "weights": weights},
        "averaged": [path.name for path in paths],
    }
