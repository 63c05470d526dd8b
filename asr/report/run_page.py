"""The page of a training, running or not: its state, curves, and hypotheses of dev utterances."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from asr.config import flat, to_dict
from asr.console import duration
from asr.experiment.collect import enter_run
from asr.experiment.records import Candidate, CurvePoint, Training
from asr.experiment.results import Results
from asr.files import is_locked, read_json
from asr.records.heard import Heard, read_heard
from asr.records.metrics import MetricsRow, read_metrics
from asr.records.run_folder import RunFolder
from asr.report import theme
from asr.report.drawing import drawn
from asr.report.findings import Finding
from asr.report.page import PAGE, write_page
from asr.report.words import metric_words
from asr.scoring.measures import is_share
from asr.scoring.statistics import percent
from asr.training.config import run_options


@dataclass(frozen=True)
class Watched:
    """State and measurements of a run, read from its files.

    Attributes:
        run: run folder.
        state: `running`, `finished`, or a sentence on how it ended.
        measure: name of the validation measure, e.g. `dev_per`.
        rows: logged metrics, a row per logged step.
        heard: hypotheses of the latest validation.
    """

    run: RunFolder
    state: str
    measure: str
    rows: list[MetricsRow]
    heard: list[Heard]

    @property
    def running(self) -> bool:
        """Whether a process is training in the folder."""
        return self.state == "running"

    def findings(self) -> Iterator[Finding]:
        """Yield state, progress and error rate."""
        yield Finding("State", f"{self.state}.")
        if not self.rows:
            return
        last = self.rows[-1]
        yield Finding("Progress", f"{self._progress(last)}.")
        errors = [(row.dev_error, row.step + 1) for row in self.rows if row.dev_error is not None]
        if errors:
            latest, lowest = errors[-1], min(errors)
            best = f"; lowest {self._shown(lowest[0])} at step {lowest[1]}" if lowest < latest else ""
            name = f"Dev {metric_words(self.measure)}"
            yield Finding(name, f"{self._shown(latest[0])} at step {latest[1]}{best}.")

    def _shown(self, value: float) -> str:
        return f"{percent(value)} %" if is_share(self.measure) else f"{value:.3f}"

    def _progress(self, last: MetricsRow) -> str:
        words = f"step {last.step + 1}"
        if last.train_s is None or not last.progress:
            return words
        words += f", {100 * last.progress:.0f} % after {duration(last.train_s)} of training"
        left_s = last.train_s * (1 - last.progress) / last.progress
        return f"{words}, {duration(left_s)} left without validation" if self.running else words


def watched(folder: Path) -> Watched:
    """Read the files that a training has written so far.

    Raises:
        UserError: a file of the run is damaged.
    """
    run = RunFolder(folder)
    if is_locked(folder):
        state = "running"
    elif run.summary.exists():
        run.read_summary()
        state = "finished"
    elif run.last.exists():
        state = "interrupted or broken off; resume=auto continues it"
    else:
        state = "broken off before its first resume point"
    measure, rows = read_metrics(run.metrics, growing=True) if run.metrics.exists() else ("dev_error", [])
    heard = read_heard(run.heard)
    return Watched(run, state, measure, rows, [row for row in heard if row.step == heard[-1].step])


def run_results(progress: Watched) -> Results:
    """Return a run's log as results with one training; its status is `running` until it has finished.

    Raises:
        UserError: a file of the run is damaged.
    """
    run = progress.run
    options = run_options(run)
    attention, seed = options.attention, options.seed
    status = "done" if progress.state == "finished" else "running"
    training = Training(run.path.name, seed, ".", status, dev_error_name=progress.measure)
    if status == "done":
        enter_run(training, run.path)
    else:
        training.curve = CurvePoint.all_of(progress.rows, 0.0)
    environment = read_json(run.environment) if run.environment.exists() else {}
    candidate = Candidate(run.path.name, attention, theme.family(attention), seeds=[seed])
    candidate.layers, candidate.subsampling = options.model.layers, options.model.subsampling
    return Results(
        command=list(environment.get("command") or []),
        protocol={
            "training": flat(to_dict(options)),
            "clock": options.trainer.budget_clock if options.trainer.budget else "wall",
        },
        environment=environment,
        candidates=[candidate],
        trainings=[training],
        drawn={"heard": [asdict(x) for x in progress.heard]},
    )


def write_run_page(progress: Watched, refresh: int = 0) -> Path:
    """Write `report.html` into a run folder and return its path.

    Args:
        progress: state and measurements of the run.
        refresh: seconds after which a browser reloads the page of a running training; 0: never.

    Raises:
        UserError: a file of the run is damaged.
    """
    results = run_results(progress)
    refresh = refresh if progress.running else 0
    body = list(drawn(results, PAGE))
    return write_page(results, body, progress.run.path, list(progress.findings()), refresh=refresh)
