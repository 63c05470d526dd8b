"""Results of the library's functions: a run, scores or a comparison, with tables of their figures."""

import html
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.errors import UserError

if TYPE_CHECKING:
    from asr.experiment.results import Results
    from asr.recognizer import Recognizer
    from asr.records.run_folder import TrainingSummary
    from asr.scoring.score import Score
    from asr.training.options import TrainConfig


class Rows(list[dict[str, Any]]):
    """A table as a list of rows, for `pandas.DataFrame`; notebooks display it as a table.

    Example:
        >>> Rows([{"step": 1, "loss": 2.5}])._repr_html_()
        '<table><tr><th>step</th><th>loss</th></tr><tr><td>1</td><td>2.5</td></tr></table>'
    """

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for row in self for name in row))
        lines = ["".join(f"<th>{html.escape(name)}</th>" for name in names)]
        for row in self:
            lines.append("".join(f"<td>{html.escape(_shown(row.get(name)))}</td>" for name in names))
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Run:
    """A training run; can be passed wherever a run folder is expected.

    Attributes:
        folder: run folder.
    """

    folder: Path

    def __fspath__(self) -> str:
        return fspath(self.folder)

    @property
    def options(self) -> "TrainConfig":
        """All options of the training."""
        from asr.records.run_folder import RunFolder
        from asr.training.config import run_options

        return run_options(RunFolder(self.folder))

    @property
    def summary(self) -> "TrainingSummary":
        """Length, cost and last error rate of the finished training."""
        from asr.records.run_folder import RunFolder

        return RunFolder(self.folder).read_summary()

    @property
    def metrics(self) -> Rows:
        """Table of the logged metrics, a row per step: loss, learning rate, validations, times."""
        from asr.files import require_file
        from asr.records.metrics import parse_metrics
        from asr.records.run_folder import RunFolder

        path = RunFolder(self.folder).metrics
        require_file(path, "a text file")
        _, rows = parse_metrics(path.read_text(encoding="utf-8"), path)
        return Rows(
            {name: float(text) if text else None for name, text in row.items()} | {"step": int(row["step"])}
            for row in rows
        )

    def recognizer(self, **options: Any) -> "Recognizer":
        """Return the trained recogniser; for options, see `Recognizer.load`."""
        from asr.recognizer import Recognizer

        return Recognizer.load(self.folder, **options)


@dataclass(frozen=True)
class Scores:
    """Error rates of one or more systems.

    Attributes:
        folders: scored folders.
        scores: error rates with counts, speakers and utterances, for each folder.
    """

    folders: list[Path]
    scores: "list[Score]"

    @property
    def rows(self) -> Rows:
        """Table with a row for each folder: rates as fractions with their 95 % intervals."""
        rows = Rows()
        for folder, score in zip(self.folders, self.scores, strict=True):
            row: dict[str, Any] = {"folder": str(folder), "utterances": len(score.utterances)}
            for metric, rate in score.rates.items():
                low, high = rate.interval or (None, None)
                row |= {metric: rate.rate, f"{metric}_low": low, f"{metric}_high": high}
            rows.append(row | {"audio_s": score.audio_s, "decode_s": score.decode_s})
        return rows


@dataclass(frozen=True)
class Comparison:
    """A comparison of mechanisms.

    Attributes:
        folder: folder of the comparison, with the trained models.
        results: all measurements; with `dry_run`, those of earlier calls.
        report: path of the report; None with `dry_run`.
    """

    folder: Path
    results: "Results"
    report: Path | None

    @property
    def rows(self) -> Rows:
        """Table with a row for each evaluation, as in results.csv."""
        return Rows(self.results.rows())

    def run(self, label: str, seed: int | None = None) -> Run:
        """Return the training of a candidate.

        Args:
            label: label of the candidate, e.g. `full`.
            seed: random seed of the training; None: the candidate's first.

        Raises:
            UserError: there is no finished training of this candidate.
        """
        trainings = self.results.trainings_of(self.results.candidate(label).label)
        for training in trainings:
            if seed in (None, training.seed):
                return Run(self.folder / training.run)
        raise UserError(f"{self.folder}: expected a finished training of {label}, seed {seed}, found none")
