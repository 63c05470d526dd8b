"""The parts of `Results`: the models of a comparison, and the measurements of each."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from asr.records.metrics import MetricsRow
from asr.scoring.statistics import Estimate


@dataclass
class SplitData:
    """A split: its manifest and the lengths of its utterances.

    Attributes:
        manifest: path.
        hash: digest of the file.
        utterances: number of utterances.
        hours: duration of the audio.
        quantiles_frames: feature frames per utterance (10 ms unless the protocol says otherwise) by
            quantile, "0.05" to "1.0".
    """

    manifest: str
    hash: str
    utterances: int
    hours: float
    quantiles_frames: dict[str, int]


@dataclass
class Candidate:
    """A model, trained here or existing before, described by its differences from the protocol.

    Attributes:
        label: unique name, e.g. `i-clustered-25` or `6 layers, i-clustered-200`.
        attention: mechanism used in training, e.g. `i-clustered-200:topk=16`; `full` for a published model.
        mechanism: family of the mechanism, e.g. `i-clustered`; empty for a model that wasn't trained here.
        size: number of clusters, rounds or classes in the mechanism's name; None if it has none.
        layers: number of encoder layers.
        subsampling: feature frames per encoder frame.
        overrides: options that differ from the protocol, by dotted name.
        finetuned_from: label or run folder of the initial model.
        seeds: random seeds, one training each.
        budget: training time, if the comparison has several; empty: the same for all.
        source: folder or name of a model that wasn't trained here.
    """

    label: str
    attention: str
    mechanism: str = ""
    size: int | None = None
    layers: int = 1
    subsampling: int = 1
    overrides: dict[str, Any] = field(default_factory=dict)
    finetuned_from: str | None = None
    seeds: list[int] = field(default_factory=lambda: [0])
    budget: str = ""
    source: str = ""

    @property
    def model(self) -> str:
        """Return the label without the budget; candidates that differ only in their budget share it."""
        return self.label.removesuffix(f", {self.budget}")


@dataclass
class CurvePoint:
    """A validation: `epoch` is fractional, `loss` the mean training loss since the previous validation."""

    step: int
    epoch: float
    train_s: float | None
    train_cpu_s: float | None
    loss: float
    dev_loss: float
    dev_error: float

    @classmethod
    def all_of(cls, rows: Iterable[MetricsRow], epochs_per_step: float) -> "list[CurvePoint]":
        """Return the validations of a training."""
        points: list[CurvePoint] = []
        losses: list[float] = []
        for row in rows:
            losses += [row.loss] if row.loss is not None else []
            if row.dev_error is None or row.dev_loss is None:
                continue
            step = row.step + 1
            points.append(
                cls(
                    step=step,
                    epoch=step * epochs_per_step,
                    train_s=row.train_s,
                    train_cpu_s=row.train_cpu_s,
                    loss=sum(losses) / len(losses) if losses else float("nan"),
                    dev_loss=row.dev_loss,
                    dev_error=row.dev_error,
                )
            )
            losses = []
        return points


@dataclass
class Training:
    """One training: a candidate and a seed.

    Attributes:
        candidate: label of the candidate.
        seed: seed for initialisation, data order and augmentation.
        run: run folder.
        status: done | failed | missing.
        error: one line if the training failed.
        reused: whether the run existed before the comparison.
        parameters: number of trained parameters.
        steps: optimiser steps taken.
        skipped_batches: batches whose loss or gradient was not finite, or which did not fit in memory.
        epochs: passes over the training data, fractional.
        frames: feature frames that the first process trained on, without padding.
        train_s: wall-clock time of training steps, including the wait for data but not validation.
        train_cpu_s: CPU time of the training process during these steps.
        seconds_per_epoch: train_s / epochs.
        time_to_best_s: train_s at the best dev error rate (time to convergence).
        time_to_best_cpu_s: train_cpu_s at the best dev error rate.
        best_step: step with the best dev error rate.
        dev_error: best dev error rate, as a fraction, or other validation measure.
        dev_error_name: dev_per | dev_cer | dev_ter | dev_wer (beam search) | dev_error |
            dev_<unit>_per_<item>.
        peak_memory_mib: peak memory of the process.
        peak_gpu_memory_mib: peak of PyTorch's GPU allocator; None without a GPU.
        backend: backend of attention: native | reference.
        commit: program version at the start of training; None outside a checkout.
        hardware: description of the machine that started the training.
        curve: one point per validation.
        command: command that repeats the training.
    """

    candidate: str
    seed: int
    run: str
    status: str
    error: str | None = None
    reused: bool = False
    parameters: int | None = None
    steps: int | None = None
    skipped_batches: int | None = None
    epochs: float | None = None
    frames: int | None = None
    train_s: float | None = None
    train_cpu_s: float | None = None
    seconds_per_epoch: float | None = None
    time_to_best_s: float | None = None
    time_to_best_cpu_s: float | None = None
    best_step: int | None = None
    dev_error: float | None = None
    dev_error_name: str | None = None
    peak_memory_mib: float | None = None
    peak_gpu_memory_mib: float | None = None
    backend: str | None = None
    commit: str | None = None
    hardware: str | None = None
    curve: list[CurvePoint] = field(default_factory=list)
    command: str = ""

    def epoch_s(self, clock: str) -> float | None:
        """Return the seconds per pass over the training data, by the `wall` or `cpu` clock."""
        if clock == "wall":
            return self.seconds_per_epoch
        return self.train_cpu_s / self.epochs if self.train_cpu_s is not None and self.epochs else None

    def best_s(self, clock: str) -> float | None:
        """Return the time to convergence in seconds, by the `wall` or `cpu` clock."""
        return self.time_to_best_cpu_s if clock == "cpu" else self.time_to_best_s


@dataclass(frozen=True)
class TriedRate:
    """A learning rate with which a candidate was trained, to choose one.

    Attributes:
        candidate: label of the candidate.
        rate: peak learning rate.
        dev_error: lowest error rate on dev, or other validation measure; None if the training failed.
        dev_loss: loss on dev at this error rate.
        train_cpu_s, train_s: CPU and wall-clock time of the training's steps.
        chosen: whether the comparison trains with it.
    """

    candidate: str
    rate: float
    dev_error: float | None
    dev_loss: float | None
    train_cpu_s: float | None
    train_s: float | None
    chosen: bool = False


@dataclass
class Evaluation:
    """One system on one split of a workload: a model, and the variant in which it runs.

    Forward times cover encoder and head over the whole split. The repeats of all systems are interleaved.
    Only the first seed that was evaluated is timed; other seeds have None.

    Attributes:
        candidate, seed: label of the candidate, and seed of its training.
        split: key of `Results.data`; dev or test without recordings.
        variant: how the model runs, as the text of `Variant`.
        decoder: greedy | beam | prefix; empty without a search.
        folder: folder with hyp.jsonl and score.json, or only with the journal.
        status: done | failed | missing.
        error: one line if the evaluation failed.
        rates: measures by name: rate, interval and length; for error rates (per, wer, cer, official, …) also
            substitutions, deletions and insertions.
        ratios: rates divided by the baseline's: rate, and interval on the same resampled items; `time`: ratio
            of times, with quartiles over batches.
        forward_s: median wall-clock time of a forward pass, or of the `passes` named.
        forward_cpu_s: median CPU time of a forward pass, or of the `passes` named.
        forward_repeats_s: wall-clock time of each repeat.
        forward_cpu_repeats_s: CPU time of each repeat.
        peak_mib: peak memory of a forward pass over the longest batch.
        audio_s: duration of the split.
        utterances: number of utterances or items in the split.
        decode_s: time of loading, forward pass and search.
        backend: backend of attention: native | reference.
        beam: search options in effect, including tuned weights; None for greedy search.
        closed: whether the vocabulary of the search contains all words of the references.
        constant: whether the model recognised the same, or nothing, in all utterances.
        command: command that repeats the evaluation.
        length: positions in each of the `utterances` sequences of random input; 0: other data.
        passes: passes on random input: forward | forward+backward | grouping.
        parts_s: medians of the parts of a training step.
    """

    candidate: str
    seed: int
    split: str
    variant: str
    decoder: str
    folder: str
    status: str
    error: str | None = None
    rates: dict[str, dict[str, Any]] = field(default_factory=dict)
    ratios: dict[str, dict[str, Any]] = field(default_factory=dict)
    forward_s: float | None = None
    forward_cpu_s: float | None = None
    forward_repeats_s: list[float] = field(default_factory=list)
    forward_cpu_repeats_s: list[float] = field(default_factory=list)
    peak_mib: float | None = None
    audio_s: float | None = None
    utterances: int | None = None
    decode_s: float | None = None
    backend: str | None = None
    beam: dict[str, Any] | None = None
    closed: bool = False
    constant: bool = False
    command: str = ""
    length: int = 0
    passes: str = ""
    parts_s: dict[str, float] = field(default_factory=dict)

    @property
    def positions(self) -> int:
        """Number of positions of a batch of random input."""
        return self.length * (self.utterances or 0)

    def seconds(self, clock: str) -> float | None:
        """Return the median time by the `wall` or `cpu` clock; None if it wasn't timed."""
        return self.forward_cpu_s if clock == "cpu" else self.forward_s

    def repeats_s(self, clock: str) -> list[float]:
        """Return the time of each repeat by the `wall` or `cpu` clock."""
        return self.forward_cpu_repeats_s if clock == "cpu" else self.forward_repeats_s


@dataclass(frozen=True)
class ItemErrors:
    """Errors of single items, from which differences between systems are computed.

    Attributes:
        errors: errors (or bits) of each utterance or item by metric, in the order of their ids.
        lengths: number of reference tokens of each.
    """

    errors: dict[str, list[float]] = field(default_factory=dict)
    lengths: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """Error rate of a system minus another's; see `asr.scoring.statistics.paired_difference`.

    Attributes:
        split, metric: split and metric of the error rates.
        first, second: candidate and variant of each system.
        estimate: difference with its interval; its count is the number of common seeds.
    """

    split: str
    metric: str
    first: tuple[str, str]
    second: tuple[str, str]
    estimate: Estimate


@dataclass
class Conditions:
    """State of the machine while the forward passes over a split were timed.

    Attributes:
        device: cpu | cuda.
        threads: CPU threads of the timing process.
        wall_s: wall-clock time of all timed passes.
        cpu_s: CPU time of all timed passes.
        other_cpus: mean number of CPUs that other processes kept busy; None if the system does not report it.
    """

    device: str
    threads: int
    wall_s: float
    cpu_s: float
    other_cpus: float | None

    BUSY_CPUS = 0.25  # a desktop at rest stays well below
    CPU_SHARE = 0.95  # a single-threaded pass that never waits for a CPU reaches 0.99

    def cpu_share(self) -> float | None:
        """Return CPU time per wall-clock time; None unless a single thread on the CPU did the work."""
        return (
            self.cpu_s / self.wall_s if self.device == "cpu" and self.threads == 1 and self.wall_s else None
        )

    def busy(self) -> bool:
        """Return whether the timing process waited for a CPU or other processes used CPUs meanwhile."""
        share = self.cpu_share()
        waited = share is not None and share < self.CPU_SHARE
        return waited or (self.other_cpus or 0.0) > self.BUSY_CPUS


@dataclass(frozen=True)
class ForwardTimes:
    """Forward passes of a model; `error`: reason in one line if it can't run; then there are no times.

    For the other attributes, see `Evaluation`.
    """

    forward_s: float | None
    forward_cpu_s: float | None
    forward_repeats_s: list[float]
    forward_cpu_repeats_s: list[float]
    error: str


@dataclass(frozen=True)
class TimingResult:
    """Result of a timing cell: the times of its models, in order, and the conditions."""

    times: list[ForwardTimes]
    conditions: Conditions


@dataclass
class Failure:
    """A failed cell: name, subject, one-line reason and log (relative path)."""

    cell: str
    candidate: str
    seed: int | None
    error: str
    log: str
