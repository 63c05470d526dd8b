"""What the cells of a comparison left behind: a record of each."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Split:
    """A manifest.

    Attributes:
        manifest: path.
        hash: of the file.
        utterances: how many.
        hours: of audio.
        quantiles_frames: feature frames (10 ms unless the protocol says otherwise) of an utterance, by
            quantile: "0.05" … "1.0".
    """

    manifest: str
    hash: str
    utterances: int
    hours: float
    quantiles_frames: dict[str, int]


@dataclass
class Candidate:
    """A model to be trained, by what distinguishes it.

    Attributes:
        label: unique, e.g. `i-clustered-25` or `6 layers, i-clustered-200`.
        attention: mechanism of training, e.g. `i-clustered-200:topk=16`.
        mechanism: its kind, e.g. `i-clustered`.
        size: clusters, rounds or classes in the name; None where it has none.
        layers: of the encoder.
        subsampling: feature frames in an encoder frame.
        overrides: options that differ from the protocol, by their dotted names.
        finetuned_from: label or run folder of the model it starts from.
        seeds: one training each.
    """

    label: str
    attention: str
    mechanism: str
    size: int | None
    layers: int
    subsampling: int
    overrides: dict[str, Any]
    finetuned_from: str | None
    seeds: list[int]


@dataclass
class CurvePoint:
    """Training at a validation: `epoch` is a fraction, `loss` the mean since the validation before."""

    step: int
    epoch: float
    train_s: float | None
    train_cpu_s: float | None
    loss: float
    dev_loss: float
    dev_error: float


@dataclass
class Training:
    """One training: a candidate and a seed.

    Attributes:
        candidate: its label.
        seed: of initialisation, order and augmentation.
        run: run folder.
        status: done | failed | missing.
        error: one line, where it failed.
        reused: whether the run was there before the comparison.
        parameters: trained numbers.
        steps: optimiser steps taken.
        epochs: passes over the training data, a fraction.
        frames: feature frames trained on, padding not counted.
        train_s: time in training steps and waiting for their data; validation is not in it.
        train_cpu_s: the same in CPU seconds of the training process.
        seconds_per_epoch: train_s / epochs.
        time_to_best_s: train_s when the best dev error rate was reached: time to convergence.
        time_to_best_cpu_s: the same in CPU seconds.
        best_step: step of the best dev error rate.
        dev_error: the best dev error rate, as a fraction.
        dev_error_name: dev_per | dev_cer | dev_ter | dev_error.
        peak_memory_mib: of the process; peak_gpu_memory_mib: of PyTorch's allocator, None without a GPU.
        backend: native | reference, the one really used.
        commit: of the program that began the training; None outside a checkout.
        hardware: that it was begun on, in words.
        curve: one point a validation.
        command: how to train it again.
    """

    candidate: str
    seed: int
    run: str
    status: str
    error: str | None = None
    reused: bool = False
    parameters: int | None = None
    steps: int | None = None
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
        """Return the seconds of one pass over the training data, by `wall` or `cpu` clock."""
        if clock == "wall":
            return self.seconds_per_epoch
        return self.train_cpu_s / self.epochs if self.train_cpu_s is not None and self.epochs else None

    def best_s(self, clock: str) -> float | None:
        """Return the time to convergence, by `wall` or `cpu` clock."""
        return self.time_to_best_cpu_s if clock == "cpu" else self.time_to_best_s


@dataclass
class Evaluation:
    """One trained model, run with one mechanism on one split.

    Attributes:
        candidate, seed: the model.
        split: key of `Results.data`.
        attention: mechanism it is run with.
        decoder: greedy | beam | prefix | cuda.
        folder: of hyp.jsonl and score.json.
        status: done | failed | missing.
        error: one line, where it failed.
        rates: by metric (per, wer, cer, official …): what score.json has: rate, interval, substitutions,
            deletions, insertions, length.
        forward_s: wall-clock time of a full forward pass of encoder and CTC head over the split, the median
            of repeats that were interleaved over all models and mechanisms. It is measured with the first
            seed of a candidate; other seeds have None.
        forward_cpu_s: the same in CPU seconds.
        forward_repeats_s: wall-clock time of each repeat.
        audio_s: duration of the split.
        utterances: in the split.
        decode_s: time of loading, forward pass and search.
        backend: native | reference, the one really used.
        beam: options of the search as they were used, tuned weights among them; None for greedy.
        command: how to evaluate it again.
    """

    candidate: str
    seed: int
    split: str
    attention: str
    decoder: str
    folder: str
    status: str
    error: str | None = None
    rates: dict[str, dict[str, Any]] = field(default_factory=dict)
    forward_s: float | None = None
    forward_cpu_s: float | None = None
    forward_repeats_s: list[float] = field(default_factory=list)
    audio_s: float | None = None
    utterances: int | None = None
    decode_s: float | None = None
    backend: str | None = None
    beam: dict[str, Any] | None = None
    command: str = ""


@dataclass
class Failure:
    """A cell that failed: its name, what it was about, one line of reason and its log (relative path)."""

    cell: str
    candidate: str
    seed: int | None
    error: str
    log: str
