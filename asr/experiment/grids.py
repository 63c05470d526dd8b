"""Comparisons described by a file: the papers' grids in conf/plan/, or the user's."""

from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from asr.config import Given, by_key, configurations, flat, load_yaml
from asr.errors import UserError, did_you_mean
from asr.experiment.options import LENGTHS
from asr.experiment.records import Candidate
from asr.files import build

NONE = "null"  # in place of a figure


@dataclass(frozen=True)
class Paper:
    """Published figures of the same grid, as written in the file.

    Attributes:
        title: table and unit.
        columns: names of the columns.
        rows: figures by label of the candidate; `null` if the paper has none.
        epochs: epochs until convergence by label or mechanism of the candidate, for estimates of time.
    """

    title: str = ""
    columns: list[str] = field(default_factory=list)
    rows: dict[str, list[str]] = field(default_factory=dict)
    epochs: dict[str, str] = field(default_factory=dict)

    def epochs_of(self, candidate: Candidate) -> float | None:
        """Return a candidate's epochs until convergence; None if the paper doesn't give them."""
        epochs = self.epochs.get(candidate.label, self.epochs.get(candidate.attention))
        return float(epochs) if epochs and not candidate.finetuned_from else None


def with_grid(given: Given) -> tuple[dict[str, Any], Paper | None]:
    """Add the options of the file named by `plan=` to the given ones, which take precedence.

    A given length of training replaces the file's, even of another kind.

    Returns:
        All options by dotted key, and the paper's figures if the file has them.

    Raises:
        UserError: the file is missing or contains no options.
    """
    own = by_key(given)
    if not own.get("plan"):
        return own, None
    path = _path(str(own["plan"]))
    values = load_yaml(path)
    paper = _paper(path) if values.pop("paper", None) is not None else None
    replaced = set(own)
    if replaced & LENGTHS.keys():
        # Only one length may be set, so the file's is dropped, whatever its kind.
        replaced |= LENGTHS.keys() if "budget" in own else {*LENGTHS, "budget_clock"}
    return {key: value for key, value in flat(values).items() if key not in replaced} | own, paper


def _paper(path: Path) -> Paper:
    """Read the entry `paper` as text, because a figure such as 5.60 would lose its zero as a number."""
    where = f"{path}: paper"
    paper = build(Paper, yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)["paper"], where)
    for figure in [*chain.from_iterable(paper.rows.values()), *paper.epochs.values()]:
        try:
            float(figure.replace(NONE, "0"))
        except ValueError:
            raise UserError(f"{where}: expected numbers, found {figure!r}") from None
    return paper


def _path(name: str) -> Path:
    """Return the path of a grid, given by its name or as a YAML file."""
    plans = configurations("plan")
    path = plans.get(name, Path(name))
    if not path.is_file():
        raise UserError(f"plan={name}: no such plan or file{did_you_mean(name, list(plans))}")
    return path
