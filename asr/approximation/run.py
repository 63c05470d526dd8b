"""Evaluates models on tasks with several mechanisms: time, scores, intervals, ratios to full attention."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asr.approximation.metrics import Values, bootstrap_scores, ratio_interval
from asr.approximation.options import Options
from asr.approximation.pretrained import Pretrained
from asr.approximation.records import examples_digest
from asr.approximation.spans import Window
from asr.approximation.tasks import Task, open_task
from asr.benchmark.timer import now, usual_clock
from asr.environment import processor
from asr.files import write_json
from asr.records.keyed import KeyedRecord, job
from asr.scoring.estimates import Estimate, percentiles

FULL = "full"
OVER = "examples"
Advance = Callable[[str], None]


@dataclass(frozen=True)
class MechanismResult:
    """Results of one mechanism on one task.

    Attributes:
        attention: mechanism.
        scores: scores by name; the first is that of Table 4.
        ratio: first score divided by that of full attention, with the interval over the same resampled
            examples; None without full attention or if its score isn't positive.
        example_s: seconds per example: CPU time on the CPU, else elapsed time.
        time_ratio: time divided by that of full attention.
        time_quartiles: quartiles of that ratio over batches.
    """

    attention: str
    scores: dict[str, Estimate]
    ratio: Estimate | None
    example_s: float
    time_ratio: float | None
    time_quartiles: tuple[float, float] | None


@dataclass(frozen=True)
class TaskResult:
    """Results of a task.

    Attributes:
        task: name of the task.
        examples, windows, tokens: numbers of examples, of the model's inputs, and of their tokens.
        rows: one per mechanism.
    """

    task: str
    examples: int
    windows: int
    tokens: int
    rows: list[MechanismResult]

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of `results.json`, in which a score is its value and interval."""
        return asdict(self, dict_factory=_entry)


def _entry(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(fields)
    if "over" not in values:
        return values
    ends = values["low"], values["high"]
    return {"value": values["value"], "interval": None if None in ends else ends}


class TaskEvaluation:
    """One task with its model.

    Args:
        name: task.
        options: options of the command; `attentions` are canonical.
        folder: output folder of the task.

    Attributes:
        task, model, windows: what is evaluated.
        todo: number of forward passes that aren't stored yet.

    Raises:
        UserError: a missing or unsuitable model or file.
    """

    def __init__(self, name: str, options: Options, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.task: Task = open_task(name, options)
        self.model = Pretrained(options.model_of(name), self.task.model_class, options.device)
        self.model.check_length(self.task.longest)
        self.task.prepare(self.model.model.config, self.model.folder)
        self.windows = self.task.windows(self.model.tokenizer)
        self.batches = list(length_batches([window.length for window in self.windows], options.batch))
        self.journal = KeyedRecord(folder / "outputs.jsonl", self._job())
        keys = [key for attention in options.attentions for key in self._keys(attention)]
        self.todo = len(set(keys) - self.journal.stored.keys())

    def _job(self) -> dict[str, Any]:
        """Return everything that decides on the stored outputs and times, but the mechanism and the batch."""
        names = ("max_length", "stride", "max_answer", "nbest", "examples", "batch", "backend")
        return job(
            "approximate",
            {name: getattr(self.options, name) for name in names},
            model=self.model.digest(),
            examples=examples_digest(self.task.path),
            device=self.options.device,
            torch=torch.__version__,
            threads=torch.get_num_threads(),
            processor=processor(),
        )

    def _keys(self, attention: str) -> list[str]:
        return [f"{attention} {number}" for number in range(len(self.batches))]

    def run(self, advance: Advance) -> TaskResult:
        """Run the mechanisms in turn on each batch, so that other load affects all of them alike; then score.

        An interrupted evaluation continues. `advance` is called after each forward pass.
        """
        names = self.options.attentions
        warm: set[str] = set()
        try:
            for number, batch in enumerate(self.batches):
                missing = [name for name in names if f"{name} {number}" not in self.journal.stored]
                windows = [self.windows[index] for index in batch]
                for name in missing:
                    self.model.use(name, self.options.backend)
                    if name not in warm:  # the first call builds the mechanism
                        self._timed(windows, name)
                        warm.add(name)
                    seconds, output = self._timed(windows, name)
                    entry = {"seconds": seconds, "kept": self.task.keep(output, windows)}
                    self.journal.add(f"{name} {number}", entry)
                    advance(f"{self.task.name}: {name}")
        finally:
            self.journal.close()
        return self._result()

    def _timed(self, windows: Sequence[Window], attention: str) -> tuple[float, Any]:
        inputs = self.model.batch(windows)
        device = self.model.device
        started = now(device)
        output = self.model.run(inputs, attention)
        return (now(device) - started).by(usual_clock(device)), output

    def _result(self) -> TaskResult:
        samples: dict[str, dict[str, Values]] = {}
        values: dict[str, dict[str, float]] = {}
        seconds: dict[str, Values] = {}
        everything = np.arange(len(self.task.examples))
        for name in self.options.attentions:
            entries = [self.journal.stored[key] for key in self._keys(name)]
            kept: list[Any] = [None] * len(self.windows)
            for batch, entry in zip(self.batches, entries, strict=True):
                for index, item in zip(batch, entry["kept"], strict=True):
                    kept[index] = item
            scored = self.task.score(kept)
            for file, content in scored.files.items():
                write_json({file: content}, self.folder / f"{file}-{name.replace(':', '-')}.json")
            values[name] = {metric: score(everything) for metric, score in scored.metrics.items()}
            samples[name] = {
                metric: bootstrap_scores(score, self.task.groups, self.options.samples, self.options.seed)
                for metric, score in scored.metrics.items()
            }
            seconds[name] = np.array([entry["seconds"] for entry in entries])
        rows = [self._row(name, values, samples, seconds) for name in self.options.attentions]
        tokens = sum(window.length for window in self.windows)
        return TaskResult(self.task.name, len(self.task.examples), len(self.windows), tokens, rows)

    def _row(
        self,
        name: str,
        values: dict[str, dict[str, float]],
        samples: dict[str, dict[str, Values]],
        seconds: dict[str, Values],
    ) -> MechanismResult:
        several = len(self.task.groups) > 1
        scores = {
            metric: Estimate.bootstrapped(
                value, percentiles(samples[name][metric]) if several else None, OVER
            )
            for metric, value in values[name].items()
        }
        main = next(iter(scores))
        ratio = time_ratio = quartiles = None
        if FULL in values:
            full = values[FULL][main]
            if full > 0:
                spread = ratio_interval(samples[name][main], samples[FULL][main]) if several else None
                ratio = Estimate.bootstrapped(values[name][main] / full, spread, OVER)
            time_ratio = float(seconds[name].sum() / seconds[FULL].sum())
            low, high = np.quantile(seconds[name] / seconds[FULL], [0.25, 0.75])
            quartiles = (float(low), float(high))
        example_s = float(seconds[name].sum()) / len(self.task.examples)
        return MechanismResult(name, scores, ratio, example_s, time_ratio, quartiles)


def length_batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield the indices of each batch: sequences of similar length, at most `tokens` with their padding.

    Example:
        >>> list(length_batches([5, 2, 9, 3], 10))
        [[1, 3], [0], [2]]
    """
    # The same batches for every mechanism, so that times are compared batch by batch.
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        if batch and lengths[index] * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
