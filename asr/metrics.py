"""metrics.csv: one row for each step."""

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from asr.files import atomic_text


class MetricsFile(Logger):
    """Logs to `metrics.csv`: one row per step that logged anything, columns fixed from the start.

    Args:
        path: of the file.
        columns: metrics to keep besides `step` and `epoch`.
        resumed_step: rows of later steps are removed first, as those steps are about to be repeated.
    """

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
            with self.path.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if int(row["step"]) < resumed_step]
        with atomic_text(self.path) as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)

    @property
    def name(self) -> str:
        """Name of the logger."""
        return "metrics"

    @property
    def version(self) -> str:
        """There is one file only."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Options are in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Collect the metrics of a step and write them when the next one begins."""
        step = int(step or 0)
        if self.pending and self.pending["step"] != step:
            self._write()
        self.pending |= {**metrics, "step": step}

    @rank_zero_only
    def flush(self) -> None:
        """Write the row that is being collected; not `save`, which Lightning calls amid a row."""
        if self.pending:
            self._write()

    def finalize(self, status: str) -> None:
        """Write the last row."""
        self.flush()

    def _write(self) -> None:
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, extrasaction="ignore").writerow(self.pending)
        self.pending = {}
