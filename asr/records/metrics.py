"""metrics.csv: a row per logged training step, read through a schema."""

import csv
from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError
from asr.files import require_file

REQUIRED = ("step", "loss", "dev_loss")


@dataclass(frozen=True)
class MetricsRow:
    """What was logged at a step; None: nothing.

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
        growing: ignore a last line without a line break, which may be half written.

    Raises:
        OSError: the file can't be read.
        UserError: a column that every run has is missing, or `parse_metrics` refuses the rows.
    """
    require_file(path, "a text file")
    text = path.read_text(encoding="utf-8", errors="replace")
    columns, rows = parse_metrics(text[: text.rfind("\n") + 1] if growing else text, path)
    for column in REQUIRED:
        if column not in columns:
            raise UserError(f"{path}: expected a column {column}, found none")
    measures = [column for column in columns if column.startswith("dev_") and column != "dev_loss"]
    if not measures:
        raise UserError(f"{path}: expected a column with a validation measure, dev_…, found none")
    name = measures[-1]
    found = []
    for number, row in enumerate(rows, start=2):
        values = {key: float(text) if text else None for key, text in row.items()}
        if values[name] is not None and values["dev_loss"] is None:
            raise UserError(f"{path}:{number}: expected dev_loss beside {name}, found none")
        found.append(
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
    return name, found


def parse_metrics(text: str, path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns of a metrics.csv, and its rows as they are written: by column, a number or nothing.

    Raises:
        UserError: a row without step, of another length than the header, or with something else than numbers;
            the message names `path` and line.
    """
    try:
        columns, *lines = csv.reader(text.splitlines())
    except (ValueError, csv.Error):  # no header, or no CSV
        raise UserError(f"{path}: expected metrics of a training, found {text[:40]!r}") from None
    rows = []
    for number, line in enumerate(lines, start=2):
        if len(line) != len(columns):
            raise UserError(f"{path}:{number}: expected {len(columns)} values, found {len(line)}")
        row = dict(zip(columns, line, strict=True))
        if not row.get("step", "").isdecimal():
            raise UserError(f"{path}:{number}: expected a step, found {row.get('step', '')[:40]!r}")
        for column, value in row.items():
            if value and not _is_number(value):
                raise UserError(f"{path}:{number}: expected a number, found {column}={value[:40]!r}")
        rows.append(row)
    return columns, rows


def _is_number(text: str) -> bool:
    try:
        float(text)  # a loss may be infinite or NaN
    except ValueError:
        return False
    return True
