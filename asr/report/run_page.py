"""The page of a training, running or not: its state, curves, and what it hears in development utterances."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from asr.config import to_dict
from asr.console import Column, Table, TableCell, duration, is_share
from asr.experiment.records import Candidate, CurvePoint, Training
from asr.experiment.results import Results
from asr.files import is_locked, read_json, write_text
from asr.records.heard import Heard, read_heard
from asr.records.metrics import MetricsRow, read_metrics
from asr.records.run_folder import RunFolder
from asr.report import curves_chart, theme
from asr.report.figure import Figure
from asr.report.findings import Finding
from asr.report.page import PAGE, created_words, render
from asr.report.protocol import settings
from asr.report.provenance import of_environment
from asr.report.words import metric_words
from asr.scoring.estimates import percent
from asr.training.config import run_options


@dataclass(frozen=True)
class Watched:
    """What the files of a run say about it.

    Attributes:
        run: run folder.
        state: `running`, `finished`, or why it is neither.
        measure: name of the validation measure, e.g. `dev_per`.
        rows: what was logged, a row for each step.
        heard: hypotheses of the latest validation.
    """

    run: RunFolder
    state: str
    measure: str
    rows: list[MetricsRow]
    heard: list[Heard]

    @property
    def running(self) -> bool:
        """Whether a process trains in the folder."""
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
    """Read what a training has written so far.

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


def heard_table(heard: list[Heard]) -> Table:
    """Return the hypotheses of a validation beside their references."""
    return Table(
        key="heard",
        label="Hypotheses",
        title=f"Development utterances at step {heard[0].step}, greedy search",
        columns=[Column(name, number=False) for name in ("utterance", "reference", "hypothesis")],
        rows=[[TableCell(text, sort=text) for text in (x.id, x.reference, x.hypothesis)] for x in heard],
        caption="The same utterances at each validation, drawn with the seed. hypotheses.jsonl has all.",
    )


def write_run_page(found: Watched, refresh: int = 0) -> Path:
    """Write `report.html` into a run folder and return its path.

    Args:
        found: what the run's files say.
        refresh: seconds after which a browser loads the page of a running training again; 0: never.

    Raises:
        UserError: a file of the run is damaged.
    """
    run = found.run
    options = run_options(run)
    environment = read_json(run.environment) if run.environment.exists() else {}
    data = environment.get("data") or {}
    hashes = ", ".join(f"{name} {str(value)[:12]}" for name, value in data.items())
    source = of_environment(environment, str(options.seed), hashes)
    attention = options.attention
    training = Training(attention, options.seed, ".", "done", dev_error_name=found.measure)
    training.curve = CurvePoint.all_of(found.rows, 0.0)
    layers, subsampling = options.model.layers, options.model.subsampling
    results = Results(
        command=[],
        recipe=options.recipe.name,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        protocol={"clock": options.trainer.budget_clock if options.trainer.budget else "wall"},
        environment=environment,
        data={},
        candidates=[
            Candidate(attention, attention, attention, None, layers, subsampling, {}, None, [options.seed])
        ],
        trainings=[training],
        evaluations=[],
        failures=[],
    )
    body: list[Figure | Table] = [*filter(None, [curves_chart.figure(results, source, by="step")])]
    body += [heard_table(found.heard)] if found.heard else []
    html = render(
        "sections.html.jinja",
        body,
        source,
        {},
        [theme.family(attention)],
        {"errors": None},
        refresh if found.running else 0,
        heading=f"{run.path}: {attention}",
        eyebrow=f"asr train · {created_words(results.created)}",
        files="metrics.csv and hypotheses.jsonl",
        sections=[
            ("summary", "Summary"),
            *((item.key, item.label) for item in body),
            ("protocol", "Protocol"),
        ],
        protocol="What this training has logged by the time of the page.",
        findings=list(found.findings()),
        settings=list(settings(to_dict(options))),
        environment=list(settings(environment)),
    )
    path = run.path / PAGE
    write_text(html, path)
    return path
