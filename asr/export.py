"""A portable model: weights as safetensors, configuration and tokenizer as JSON; nothing is unpickled.

A folder with model.safetensors, config.json and tokenizer.json. config.json has the SHA-256 of the two other
files and of its own settings: a file that was cut or changed is refused.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_weights
from safetensors.torch import save as save_weights

from asr import __version__
from asr.errors import UserError
from asr.files import write_bytes

FORMAT = "clustered-asr model 1"
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
BYTES = "hex:"  # how bytes (a sentencepiece model) stand in JSON


def portable_folder(path: Path) -> Path | None:
    """Return the folder where `path` is such a folder, or a file of one."""
    if path.is_dir() and any((path / name).is_file() for name in (WEIGHTS, TOKENIZER)):
        return path
    return path.parent if path.is_file() and path.name in (WEIGHTS, CONFIG, TOKENIZER) else None


def write_portable(state: dict[str, Any], folder: Path) -> list[Path]:
    """Write `Recognizer.state()` and return the files; config.json comes last: with it the model is whole.

    Raises:
        OSError: the disk is full, say.
    """
    (folder / CONFIG).unlink(missing_ok=True)
    weights = save_weights({name: x.detach().cpu().contiguous() for name, x in state["weights"].items()})
    tokenizer = _json(_without_bytes(state["tokenizer"]))
    settings = {
        "format": FORMAT,
        "version": __version__,
        "config": state["config"],
        "sha256": {WEIGHTS: _digest(weights), TOKENIZER: _digest(tokenizer)},
    }
    config = _json({**settings, "sha256_of_this": _digest(_json(settings))})
    for name, content in ((WEIGHTS, weights), (TOKENIZER, tokenizer), (CONFIG, config)):
        write_bytes(content, folder / name)
    return [folder / name for name in (WEIGHTS, TOKENIZER, CONFIG)]


def read_portable(path: Path) -> dict[str, Any]:
    """Return what `Recognizer.from_state` takes.

    Args:
        path: the folder, or a file in it.

    Raises:
        UserError: a file that is missing, cut or changed.
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
        if _digest(content[name]) != settings["sha256"].get(name):
            raise UserError(
                f"{folder / name}: expected the file that {CONFIG} was written with, found another "
                f"({len(content[name])} bytes: cut or changed)"
            )
    try:
        weights = load_weights(content[WEIGHTS])
        tokenizer = _with_bytes(json.loads(content[TOKENIZER]))
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{folder}: expected weights and a tokenizer, found {error}") from None
    return {"config": settings["config"], "tokenizer": tokenizer, "weights": weights}


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: the file can't be read ({error.strerror})") from None
    except ValueError:
        raise UserError(f"{path}: expected JSON, found a file that was cut or changed") from None
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise UserError(f"{path}: expected the configuration of an exported model, format {FORMAT!r}")
    digest = settings.pop("sha256_of_this", None)
    if digest != _digest(_json(settings)):
        raise UserError(f"{path}: expected the settings that were exported, found changed ones")
    return settings


def _json(values: Any) -> bytes:
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _without_bytes(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {BYTES: value.hex()} if isinstance(value, bytes) else value for name, value in values.items()
    }


def _with_bytes(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: bytes.fromhex(value[BYTES]) if isinstance(value, dict) and set(value) == {BYTES} else value
        for name, value in values.items()
    }
