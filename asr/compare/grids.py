"""Comparisons described by a file: the papers' grids in conf/plan/, or a user's own."""

import importlib.resources
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.config import flat, load_yaml
from asr.errors import UserError, did_you_mean
from asr.files import build


@dataclass(frozen=True)
class Paper:
    """Published figures of the same grid.

    Attributes:
        title: table and unit.
        columns: names of the columns.
        rows: figures by label of the candidate; None where the paper has none.
    """

    title: str
    columns: list[str]
    rows: dict[str, list[float | None]]


def grid_names() -> list[str]:
    """Return the names of the grids in conf/plan/."""
    folder = importlib.resources.files("asr_conf") / "plan"
    return sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".yaml"))


def with_grid(words: list[str]) -> tuple[list[str], Paper | None]:
    """Put the options of the file that `plan=` names before the other words, which override them.

    Args:
        words: command-line arguments.

    Returns:
        All words, and the paper's figures if the file has them.

    Raises:
        UserError: no such file, or it holds no options.
    """
    chosen = [word.partition("=")[2] for word in words if word.startswith("plan=")]
    if not chosen or not chosen[-1]:
        return words, None
    path = _path(chosen[-1])
    values = load_yaml(path)
    found = values.pop("paper", None)
    paper = None if found is None else build(Paper, found, f"{path}: paper")
    given = {word.partition("=")[0] for word in words}
    own = [f"{key}={_text(value)}" for key, value in flat(values).items() if key not in given]
    return [*own, *words], paper


def _path(name: str) -> Path:
    """Return the path of a grid, given by its name or as a YAML file."""
    if name in grid_names():
        return Path(str(importlib.resources.files("asr_conf") / "plan" / f"{name}.yaml"))
    if Path(name).is_file():
        return Path(name)
    raise UserError(f"plan={name}: no such plan or file{did_you_mean(name, grid_names())}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
