"""Comparisons described by a file: the papers' grids in conf/plan/, or a user's own."""

from dataclasses import dataclass
from pathlib import Path

from asr.config import configurations, load_yaml, option_words
from asr.errors import UserError, did_you_mean
from asr.files import build

LENGTHS = {"budget", "steps", "epochs"}


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


def with_grid(words: list[str]) -> tuple[list[str], Paper | None]:
    """Put the options of the file that `plan=` names before the other words, which override them.

    A length of training overrides one of another kind.

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
    if given & LENGTHS:
        given |= LENGTHS if "budget" in given else {*LENGTHS, "budget_clock"}
    own = [word for word in option_words(values) if word.partition("=")[0] not in given]
    return [*own, *words], paper


def _path(name: str) -> Path:
    """Return the path of a grid, given by its name or as a YAML file."""
    plans = configurations("plan")
    path = plans.get(name, Path(name))
    if not path.is_file():
        raise UserError(f"plan={name}: no such plan or file{did_you_mean(name, list(plans))}")
    return path
