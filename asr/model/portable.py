"""Portable models: weights as safetensors, configuration and tokenizer as JSON, without pickles.

A portable model is a folder with model.safetensors, config.json and tokenizer.json. config.json contains the
SHA-256 of the other two files and of its settings, so that truncated or changed files are rejected.
"""

import json
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors.torch import load as load_weights
from safetensors.torch import save as save_weights

from asr.errors import UserError
from asr.files import check_writable, digest, read_json, write_bytes
from asr.model import checkpoint

FORMAT = "clustered-asr model 1"
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
FILES = (WEIGHTS, CONFIG, TOKENIZER)
BYTES = "hex:"  # key of bytes (a sentencepiece model) in JSON


def portable_folder(path: Path) -> Path | None:
    """Return the folder if `path` is a portable model or one of its files, else None."""
    if path.is_dir() and any((path / name).is_file() for name in (WEIGHTS, TOKENIZER)):
        return path
    return path.parent if path.is_file() and path.name in (WEIGHTS, CONFIG, TOKENIZER) else None


def check_replaceable(folder: Path, names: Iterable[str] = FILES) -> None:
    """Raise UserError if a folder contains files other than an exported model's, or can't be written."""
    check_writable(folder / CONFIG)
    present = {path.name for path in folder.glob("*") if path.suffix != ".partial"}
    if foreign := sorted(present - set(names)):
        raise UserError(f"out={folder}: expected an empty folder or an exported model, found {foreign[0]}")
    if names == FILES and CONFIG in present:
        _read_settings(folder / CONFIG)


def write_portable(state: dict[str, Any], folder: Path) -> list[Path]:
    """Write `Recognizer.state()` and return the files. config.json is written last and completes the model.

    Raises:
        OSError: a file can't be written, e.g. on a full disk.
    """
    tensors = {name: x.detach().cpu().contiguous().clone() for name, x in state["weights"].items()}
    weights = save_weights(tensors)  # requires tensors that share no memory, unlike those of tied layers
    tokenizer = _json(_without_bytes(state["tokenizer"]))
    settings = {
        "format": FORMAT,
        "version": metadata.version("clustered-asr"),
        "config": state["config"],
        "sha256": {WEIGHTS: digest(weights, 64), TOKENIZER: digest(tokenizer, 64)},
    }
    config = _json({**settings, "sha256_of_this": digest(_json(settings), 64)})
    (folder / CONFIG).unlink(missing_ok=True)
    for name, content in ((WEIGHTS, weights), (TOKENIZER, tokenizer), (CONFIG, config)):
        write_bytes(content, folder / name)
    return [folder / name for name in (WEIGHTS, TOKENIZER, CONFIG)]


def read_portable(path: Path) -> dict[str, Any]:
    """Read a portable model and return the state for `Recognizer.from_state`.

    Args:
        path: the folder or one of its files.

    Raises:
        UserError: a file is missing, truncated or changed.
    """
    folder = portable_folder(path)
    if folder is None:
        raise UserError(f"{path}: expected an exported model ({WEIGHTS}, {CONFIG}, {TOKENIZER}), found none")
    settings = _read_settings(folder / CONFIG)
    content = {}
    for name in (WEIGHTS, TOKENIZER):
        try:
            content[name] = (folder / name).read_bytes()
        except OSError as error:
            raise UserError(f"{folder / name}: the file can't be read ({error.strerror})") from None
        if digest(content[name], 64) != settings["sha256"].get(name):
            raise UserError(
                f"{folder / name}: expected the file that was exported with {CONFIG}, found another "
                f"({len(content[name])} bytes; truncated or changed)"
            )
    tokenizer = _with_bytes(json.loads(content[TOKENIZER]))
    return {"config": settings["config"], "tokenizer": tokenizer, "weights": load_weights(content[WEIGHTS])}


def read_state(path: Path, which: str = "auto") -> tuple[Path, dict[str, Any]]:
    """Read a model of this project; return its file or folder, and its state.

    Args:
        path: a run folder, a checkpoint or an exported model.
        which: see `RunFolder.checkpoint`.
    """
    if folder := portable_folder(path):
        return folder, read_portable(folder)
    file = checkpoint.find(path, which)
    state: dict[str, Any] = checkpoint.load(file)["model"]
    return file, state


def _read_settings(path: Path) -> dict[str, Any]:
    values = read_json(path, "the configuration of an exported model")
    if values.get("format") != FORMAT:
        raise UserError(f"{path}: expected the configuration of an exported model, format {FORMAT!r}")
    if values.pop("sha256_of_this", None) != digest(_json(values), 64):
        raise UserError(f"{path}: expected the exported settings, found changed ones")
    return values


def _json(values: Any) -> bytes:
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()


def _without_bytes(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {BYTES: value.hex()} if isinstance(value, bytes) else value for name, value in values.items()
    }


def _with_bytes(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: bytes.fromhex(value[BYTES]) if isinstance(value, dict) and BYTES in value else value
        for name, value in values.items()
    }
