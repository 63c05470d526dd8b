"""Comparisons described by a file: the papers' grids in conf/plan/, or a user's own."""

from dataclasses import dataclass
from pathlib import Path

from asr.comparison.options import LENGTHS
from asr.config import as_overrides, configurations, load_yaml
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


def with_grid(overrides: list[str]) -> tuple[list[str], Paper | None]:
    """Put the options of the file that `plan=` names before the other overrides, which win.

    A length of training overrides one of another kind.

    Args:
        overrides: command-line arguments.

    Returns:
        All overrides, and the paper's figures if the file has them.

    Raises:
        UserError: no such file, or it holds no options.
    """
    chosen = [x.partition("=")[2] for x in overrides if x.startswith("plan=")]
    if not chosen or not chosen[-1]:
        return overrides, None
    path = _path(chosen[-1])
    values = load_yaml(path)
    found = values.pop("paper", None)
    paper = None if found is None else build(Paper, found, f"{path}: paper")
    given = {x.partition("=")[0] for x in overrides}
    if given & LENGTHS.keys():
        # One length alone may be set, so the file's goes whatever its kind.
        given |= LENGTHS.keys() if "budget" in given else {*LENGTHS, "budget_clock"}
    own = [x for x in as_overrides(values) if x.partition("=")[0] not in given]
    return [*own, *overrides], paper


def _path(name: str) -> Path:
    """Return the path of a grid, given by its name or as a YAML file."""
    plans = configurations("plan")
    path = plans.get(name, Path(name))
    if not path.is_file():
        raise UserError(f"plan={name}: no such plan or file{did_you_mean(name, list(plans))}")
    return path
