"""Evaluates models on tasks with several mechanisms: time, scores, intervals, ratios to full attention."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.approximation.ctc_model import Open
from asr.approximation.glue import find_glue
from asr.approximation.metrics import bootstrap_scores, ratio_interval
from asr.approximation.options import FULL, LAYERS, TRANSCRIPTION, Options
from asr.approximation.squad import find_squad
from asr.approximation.tasks import GlueTask, SquadTask
from asr.approximation.transcription import TranscriptionTask
from asr.attention.table import joined_name
from asr.environment import processor
from asr.errors import UserError
from asr.files import build, write_json
from asr.measure import now, peak_bytes_of, usual_clock
from asr.records.job import Job, identity
from asr.scoring.estimates import Estimate, Values, percentiles

OVER = "examples"
WRITTEN = str.maketrans(":*", "-x")  # in names of files
Advance = Callable[[str], None]
Task = GlueTask | SquadTask | TranscriptionTask


@dataclass(frozen=True)
class MechanismResult:
    """Results of one mechanism on one task.

    Attributes:
        attention: mechanism.
        scores: scores by name; the first is that of Table 4.
        ratios: scores divided by those of the baseline, with the interval over the same resampled examples;
            None without the baseline or if its score isn't positive.
        example_s: seconds per example: CPU time on the CPU, else elapsed time.
        time_ratio: time divided by that of the baseline.
        time_quartiles: quartiles of that ratio over batches.
        peak_bytes: peak memory of a forward pass over the batch with the longest inputs; None if unknown.
    """

    attention: str
    scores: dict[str, Estimate]
    ratios: dict[str, Estimate | None]
    example_s: float
    time_ratio: float | None
    time_quartiles: tuple[float, float] | None
    peak_bytes: int | None


@dataclass(frozen=True)
class TaskResult:
    """Results of a task.

    Attributes:
        task: name of the task.
        timed: part of the model whose time was measured.
        baseline: mechanism in the denominator of the ratios.
        examples, windows, tokens: numbers of examples, of the model's inputs, and of their tokens.
        rows: one per mechanism.
    """

    task: str
    timed: str
    baseline: str
    examples: int
    windows: int
    tokens: int
    rows: list[MechanismResult]

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of `results.json`, in which a score is its value and interval."""
        return asdict(self, dict_factory=_entry)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str) -> "TaskResult":
        """Return what `as_dict` wrote; UserError, which names `source`, if it is something else."""
        rows = [
            {name: _estimates(x) if name in ("scores", "ratios") else x for name, x in row.items()}
            for row in values.get("rows", [])
            if isinstance(row, dict)
        ]
        found: TaskResult = build(cls, values | {"rows": rows}, source)
        return found


def _entry(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(fields)
    if "over" not in values:
        return values
    ends = values["low"], values["high"]
    return {"value": values["value"], "interval": None if None in ends else ends}


def _estimates(scores: Any) -> Any:
    """Return the entries of estimates with all fields."""
    if not isinstance(scores, dict):
        return scores
    found = {}
    for name, entry in scores.items():
        ends = entry.get("interval") if isinstance(entry, dict) else None
        low, high = ends if isinstance(ends, list) and len(ends) == 2 else (None, None)
        more = {"low": low, "high": high, "count": 1, "over": OVER}
        found[name] = {"value": entry.get("value"), **more} if isinstance(entry, dict) else entry
    return found


class TaskEvaluation:
    """One task with its model.

    Args:
        name: task.
        options: options of the command; `attentions` are canonical.
        folder: output folder of the task.
        open_model: see `TranscriptionTask`.

    Attributes:
        task, model, windows: what is evaluated.
        names: mechanisms, of all layers or of each.
        todo: number of forward passes that aren't stored yet.

    Raises:
        UserError: a missing or unsuitable model or file.
    """

    def __init__(self, name: str, options: Options, folder: Path, open_model: Open | None = None) -> None:
        self.options, self.folder = options, folder
        self.task: Task = open_task(name, options, open_model)
        self.model: Any = self.task.load(options.model_of(name), options.device)
        self.windows: list[Any] = self.task.windows()
        self.batches = list(length_batches([window.length for window in self.windows], options.batch))
        self.names = options.attentions
        if options.sweep == LAYERS and name == TRANSCRIPTION:
            model: Any = self.model  # of transcription
            self.names = swept(options.attentions, model.layers)
        if name == TRANSCRIPTION:
            self.names = [*self.names, *options.rivals]
        self.journal = Job(folder / "outputs.jsonl", self._job())
        keys = [key for attention in self.names for key in self._keys(attention)]
        self.todo = len(set(keys) - self.journal.stored.keys())

    def _job(self) -> dict[str, Any]:
        """Return everything that decides on the stored outputs and times, but the mechanism and the batch."""
        names = [
            *("max_length", "stride", "max_answer", "nbest", "examples", "batch", "backend"),
            *("join_s", "language"),
        ]
        return identity(
            "approximate",
            {name: getattr(self.options, name) for name in names},
            model=self.model.digest(),
            examples=self.task.digest(),
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
        names = self.names
        warm: set[str] = set()
        try:
            for number, batch in enumerate(self.batches):
                missing = [name for name in names if f"{name} {number}" not in self.journal.stored]
                if not missing:
                    continue
                windows = [self.windows[index] for index in batch]
                inputs = self.model.batch(windows)
                reference = None
                if isinstance(self.task, TranscriptionTask):
                    reference = self.task.reference(self._timed(inputs, FULL)[1], windows)
                for name in missing:
                    if name not in warm:  # the first call builds the mechanism
                        self._timed(inputs, name)
                        warm.add(name)
                    seconds, output = self._timed(inputs, name)
                    entry = {"seconds": seconds, "kept": self.task.keep(output, windows, reference)}
                    self.journal.add(f"{name} {number}", entry)
                    advance(f"{self.task.name}: {name}")
            self._measure_memory(warm)
        finally:
            self.journal.close()
        return self._result()

    def _measure_memory(self, warm: set[str]) -> None:
        """Measure a forward pass of each mechanism over the batch with the longest inputs."""
        missing = [name for name in self.names if f"{name} memory" not in self.journal.stored]
        inputs = self.model.batch([self.windows[index] for index in self.batches[-1]]) if missing else {}
        for name in missing:
            if name not in warm:  # code is loaded when it first runs
                self._timed(inputs, name)
            self.model.use(name, self.options.backend)
            peak = peak_bytes_of(partial(self.model.run, inputs, name), self.model.device)
            self.journal.add(f"{name} memory", {"peak_bytes": peak})

    def _timed(self, inputs: dict[str, Tensor], attention: str) -> tuple[float, Any]:
        self.model.use(attention, self.options.backend)
        device = self.model.device
        started = now(device)
        output = self.model.run(inputs, attention)
        time = (now(device) - started).by(usual_clock(device))
        if any(tensor.isnan().any() for tensor in _tensors(output)):
            raise UserError(
                f"model={self.options.model_of(self.task.name)}: expected numbers as output with attention "
                f"{attention!r}, found NaN (broken weights?)"
            )
        return time, output

    def _result(self) -> TaskResult:
        samples: dict[str, dict[str, Values]] = {}
        values: dict[str, dict[str, float]] = {}
        seconds: dict[str, Values] = {}
        everything = np.arange(len(self.task.examples))
        for name in self.names:
            entries = [self.journal.stored[key] for key in self._keys(name)]
            kept: list[Any] = [None] * len(self.windows)
            for batch, entry in zip(self.batches, entries, strict=True):
                for index, item in zip(batch, entry["kept"], strict=True):
                    kept[index] = item
            scored = self.task.score(kept)
            for file, content in scored.files.items():
                write_json({file: content}, self.folder / f"{file}-{name.translate(WRITTEN)}.json")
            values[name] = {metric: score(everything) for metric, score in scored.metrics.items()}
            samples[name] = {
                metric: bootstrap_scores(score, self.task.groups, self.options.samples, self.options.seed)
                for metric, score in scored.metrics.items()
            }
            seconds[name] = np.array([entry["seconds"] for entry in entries])
        rows = [self._row(name, values, samples, seconds) for name in self.names]
        tokens = sum(window.length for window in self.windows)
        return TaskResult(
            self.task.name,
            self.task.timed,
            self.options.baseline,
            len(self.task.examples),
            len(self.windows),
            tokens,
            rows,
        )

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
        base = self.options.baseline
        ratios: dict[str, Estimate | None] = dict.fromkeys(scores)
        time_ratio = quartiles = None
        if base in values:
            for metric, value in values[name].items():
                if values[base][metric] > 0:
                    spread = ratio_interval(samples[name][metric], samples[base][metric]) if several else None
                    ratios[metric] = Estimate.bootstrapped(value / values[base][metric], spread, OVER)
            time_ratio = float(seconds[name].sum() / seconds[base].sum())
            low, high = np.quantile(seconds[name] / seconds[base], [0.25, 0.75])
            quartiles = (float(low), float(high))
        example_s = float(seconds[name].sum()) / len(self.task.examples)
        peak = self.journal.stored[f"{name} memory"]["peak_bytes"]
        return MechanismResult(name, scores, ratios, example_s, time_ratio, quartiles, peak)


def _tensors(output: Any) -> list[Tensor]:
    """Return the tensors of a model's output: one, a sequence, or a mapping."""
    parts = (
        output.values()
        if isinstance(output, dict)
        else output
        if isinstance(output, tuple | list)
        else [output]
    )
    return [part for part in parts if isinstance(part, Tensor)]


def swept(attentions: Sequence[str], layers: int) -> list[str]:
    """Return full attention, and every other mechanism in one layer at a time.

    Example:
        >>> swept(["full", "local-8"], 2)
        ['full', 'local-8*1,full*1', 'full*1,local-8*1']
    """
    others = [name for name in attentions if name != FULL]
    return [
        FULL,
        *(
            joined_name([name if i == layer else FULL for i in range(layers)])
            for name in others
            for layer in range(layers)
        ),
    ]


def open_task(name: str, options: Options, open_model: Open | None = None) -> Task:
    """Read a task's examples.

    Raises:
        UserError: a missing or broken file.
    """
    data = options.data_of(name)
    match name:
        case "transcription":
            return TranscriptionTask(name, options, open_model)
        case "squad":
            return SquadTask(name, find_squad(data), options)
        case _:
            return GlueTask(name, find_glue(name, data), options)


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
