"""metrics.csv: a row per logged training step, read through a schema."""

import csv
from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError
from asr.files import require_file

COLUMNS = {"step", "loss", "dev_loss"}


@dataclass(frozen=True)
class MetricsRow:
    """Values logged at a step; None: not logged.

    Attributes:
        step: number of optimiser steps before this one.
        loss: training loss.
        dev_loss, dev_error: loss and measure of a validation.
        train_s, train_cpu_s: wall-clock and CPU time of training steps so far.
        progress: completed fraction of training.
    """

    step: int
    loss: float | None
    dev_loss: float | None
    dev_error: float | None
    train_s: float | None = None
    train_cpu_s: float | None = None
    progress: float | None = None


def read_metrics(path: Path, *, growing: bool = False) -> tuple[str, list[MetricsRow]]:
    """Return the name of the validation measure, e.g. `dev_per`, and the rows of a training.

    Args:
        path: file.
        growing: whether to ignore a last line without a line break, which may be incomplete.

    Raises:
        OSError: the file can't be read.
        UserError: see `parse_metrics`.
    """
    require_file(path, "a text file")
    text = path.read_text(encoding="utf-8", errors="replace")
    columns, rows = parse_metrics(text[: text.rfind("\n") + 1] if growing else text, path)
    name = next(filter(_is_measure, reversed(columns)))
    parsed = []
    for row in rows:
        values = {key: float(text) if text else None for key, text in row.items()}
        parsed.append(
            MetricsRow(
                step=int(row["step"]),
                loss=values["loss"],
                dev_loss=values["dev_loss"],
                dev_error=values[name],
                train_s=values.get("train_s"),
                train_cpu_s=values.get("train_cpu_s"),
                progress=values.get("progress"),
            )
        )
    return name, parsed


def parse_metrics(text: str, path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns of a metrics.csv, and its rows as written: a number or nothing for each column.

    Raises:
        UserError: a column is missing, or a row doesn't fit the columns.
    """
    try:
        columns, *lines = csv.reader(text.splitlines())
        rows = [dict(zip(columns, line, strict=True)) for line in lines]
        for row in rows:
            int(row["step"])
            [float(x) for x in row.values() if x]
    except (ValueError, KeyError, csv.Error):
        raise UserError(f"{path}: damaged: expected metrics of a training, a number for each step") from None
    if missing := COLUMNS - set(columns):
        raise UserError(f"{path}: damaged: expected a column {min(missing)}, found none")
    if not any(map(_is_measure, columns)):
        raise UserError(f"{path}: damaged: expected a column with a validation measure, dev_…, found none")
    return columns, rows


def _is_measure(column: str) -> bool:
    return column.startswith("dev_") and column != "dev_loss"
