"""The log of training metrics, metrics.csv."""

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from asr.files import atomic_text
from asr.records.metrics import parse_metrics


class MetricsFile(Logger):
    """Logger that writes a CSV file with one row per logged step and fixed columns.

    Args:
        path: CSV file.
        columns: metrics to write; the first column is always `step`.
        resumed_step: step from which training resumes. Rows from this step on are removed, because those
            steps are repeated.
    """

    name = "metrics"
    version = ""

    def __init__(self, path: Path, columns: list[str], resumed_step: int) -> None:
        super().__init__()
        self.path = path
        self.columns = ["step", *columns]
        self.pending: dict[str, float] = {}
        self._begin(resumed_step)

    @rank_zero_only
    def _begin(self, resumed_step: int) -> None:
        rows = []
        if self.path.exists() and resumed_step > 0:
            text = self.path.read_text(encoding="utf-8", errors="replace")
            whole = text[: text.rfind("\n") + 1]  # a full disk may have cut the last row
            _, stored = parse_metrics(whole, self.path)
            rows = [row for row in stored if int(row["step"]) < resumed_step]
        with atomic_text(self.path) as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: config.yaml contains the options."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Collect the metrics of a step, and write them when the next step logs."""
        step = int(step or 0)
        if self.pending.get("step") != step:
            self.flush()
        self.pending |= {**metrics, "step": step}

    @rank_zero_only
    def flush(self) -> None:
        """Write the pending row. Not named `save`, which Lightning calls before a row is complete."""
        if self.pending:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self.columns, extrasaction="ignore").writerow(self.pending)
            self.pending = {}

    def finalize(self, status: str) -> None:
        """Write the last row."""
        self.flush()
