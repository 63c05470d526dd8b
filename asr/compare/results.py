"""Results of a comparison: one record for tables, figures and the report, stored as results.json.

Paths of runs and evaluations are relative to the folder of results.json; manifests are stored as given on the
command line.
"""

from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import build, read_json, write_json
from asr.scoring.estimates import Estimate, over_seeds, pareto_front, spread
from asr.text.files import write_table

FORMAT = 1
METRICS = ("per", "wer", "cer")  # order of precedence unless the protocol names a metric
OFFICIAL = "official"  # for test sets with a reference in NIST's formats; subsets: `official-swbd`


@dataclass
class Split:
    """A manifest.

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
    """A model to train, described by what sets it apart.

    Attributes:
        label: unique name, e.g. `i-clustered-25` or `6 layers, i-clustered-200`.
        attention: mechanism used in training, e.g. `i-clustered-200:topk=16`.
        mechanism: family of the mechanism, e.g. `i-clustered`.
        size: clusters, rounds or classes in the mechanism's name; None if it has none.
        layers: encoder layers.
        subsampling: feature frames per encoder frame.
        overrides: options that differ from the protocol, by dotted name.
        finetuned_from: label or run folder of the initial model.
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
    """A validation: `epoch` is fractional, `loss` the mean training loss since the previous validation."""

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
        candidate: label of the candidate.
        seed: seed for initialisation, data order and augmentation.
        run: run folder.
        status: done | failed | missing.
        error: one line if the training failed.
        reused: whether the run existed before the comparison.
        parameters: number of trained parameters.
        steps: optimiser steps taken.
        epochs: passes over the training data, fractional.
        frames: feature frames trained on, without padding.
        train_s: wall-clock time of training steps, including the wait for data but not validation.
        train_cpu_s: CPU time of the training process during these steps.
        seconds_per_epoch: train_s / epochs.
        time_to_best_s: train_s at the best dev error rate (time to convergence).
        time_to_best_cpu_s: train_cpu_s at the best dev error rate.
        best_step: step with the best dev error rate.
        dev_error: best dev error rate, as a fraction, or other validation measure.
        dev_error_name: dev_per | dev_cer | dev_ter | dev_error | dev_<unit>_per_<item>.
        peak_memory_mib: peak memory of the process.
        peak_gpu_memory_mib: peak of PyTorch's GPU allocator; None without a GPU.
        backend: backend that ran: native | reference.
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


@dataclass
class Evaluation:
    """One trained model, run with one mechanism on one split.

    Forward times cover encoder and head over the whole split. The repeats of all models and mechanisms
    are interleaved. Only the first seed of a candidate is timed; other seeds have None.

    Attributes:
        candidate, seed: the model.
        split: key of `Results.data`.
        attention: mechanism of this evaluation.
        decoder: greedy | beam | prefix | cuda.
        folder: folder with hyp.jsonl and score.json.
        status: done | failed | missing.
        error: one line if the evaluation failed.
        rates: entries of score.json by metric (per, wer, cer, official, …): rate, interval, substitutions,
            deletions, insertions, length.
        forward_s: median wall-clock time of a forward pass.
        forward_cpu_s: median CPU time of a forward pass.
        forward_repeats_s: wall-clock time of each repeat.
        forward_cpu_repeats_s: CPU time of each repeat.
        audio_s: duration of the split.
        utterances: number of utterances in the split.
        decode_s: time of loading, forward pass and search.
        backend: backend that ran: native | reference.
        beam: search options in effect, including tuned weights; None for greedy search.
        command: command that repeats the evaluation.
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
    forward_cpu_repeats_s: list[float] = field(default_factory=list)
    audio_s: float | None = None
    utterances: int | None = None
    decode_s: float | None = None
    backend: str | None = None
    beam: dict[str, Any] | None = None
    command: str = ""


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
        """Return CPU time per wall-clock time; None unless one thread on the CPU did the work."""
        return (
            self.cpu_s / self.wall_s if self.device == "cpu" and self.threads == 1 and self.wall_s else None
        )

    def busy(self) -> bool:
        """Return whether the timing process waited for a CPU or other processes used CPUs meanwhile."""
        share = self.cpu_share()
        waited = share is not None and share < self.CPU_SHARE
        return waited or (self.other_cpus or 0.0) > self.BUSY_CPUS


@dataclass
class Failure:
    """A failed cell: name, subject, one-line reason and log (relative path)."""

    cell: str
    candidate: str
    seed: int | None
    error: str
    log: str


@dataclass
class Results:
    """Everything that a comparison measured.

    Attributes:
        command: words of the command line.
        recipe: name of the recipe.
        created: ISO 8601 in UTC.
        protocol: settings that all candidates share: `training` (options of `asr train`), `budget`, `seeds`,
            `evaluate`, `splits`, `metric`, `decoder`, `beam`, `files` (hashes), `clock`, `threads`,
            `timing_repeats`, `timing_threads`.
        environment: commit, hardware, versions.
        data: splits by name, including `train` and `dev`.
        candidates, trainings, evaluations, failures: in the order of the command line.
        conditions: load on the machine during timing, by split.
    """

    command: list[str]
    recipe: str
    created: str
    protocol: dict[str, Any]
    environment: dict[str, Any]
    data: dict[str, Split]
    candidates: list[Candidate]
    trainings: list[Training]
    evaluations: list[Evaluation]
    failures: list[Failure]
    conditions: dict[str, Conditions] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def clock(self) -> str:
        """Return the clock for all costs: `wall` or `cpu`."""
        return str(self.protocol.get("clock", "wall"))

    def candidate(self, label: str) -> Candidate:
        """Return the candidate with this label."""
        found = next((candidate for candidate in self.candidates if candidate.label == label), None)
        if found is None:
            raise UserError(f"results.json: no candidate {label!r}, which an evaluation or a training names")
        return found

    def trainings_of(self, label: str) -> list[Training]:
        """Return the finished trainings of a candidate, one per seed."""
        return [x for x in self.trainings if x.candidate == label and x.status == "done"]

    def evaluations_of(self, label: str, split: str, attention: str | None = None) -> list[Evaluation]:
        """Return a candidate's finished evaluations on a split, one per seed.

        Args:
            label: label of the candidate.
            split: name of the split.
            attention: mechanism of evaluation; None: the one used in training.
        """
        wanted = attention or self.candidate(label).attention
        return [
            x
            for x in self.evaluations
            if (x.candidate, x.split, x.attention, x.status) == (label, split, wanted, "done")
        ]

    def is_own(self, evaluation: Evaluation) -> bool:
        """Return whether the model was evaluated with the mechanism it was trained with."""
        return evaluation.attention == self.candidate(evaluation.candidate).attention

    def attentions(self) -> list[str]:
        """Return the mechanisms of evaluation in order of appearance."""
        return list(dict.fromkeys(x.attention for x in self.evaluations))

    def splits(self) -> list[str]:
        """Return the evaluated splits."""
        return list(dict.fromkeys(x.split for x in self.evaluations))

    def metrics(self, split: str | None = None) -> list[str]:
        """Return the measured error rates of a split, or of all splits.

        The first one is the main metric of tables and figures: the one the protocol names, or the word error
        rate for a beam search over words.
        """
        evaluations = [x for x in self.evaluations if split in (None, x.split)]
        found = dict.fromkeys(name for x in evaluations for name in x.rates)
        asked = self.protocol.get("metric")
        first = [asked] if asked else [OFFICIAL, "wer"] if self.protocol.get("decoder") == "beam" else []
        order = [*first, *METRICS, *found]
        return sorted(found, key=order.index)

    def error_rate(
        self, label: str, split: str, metric: str, attention: str | None = None
    ) -> Estimate | None:
        """Return a candidate's mean error rate over its seeds, as a fraction; None if nothing has finished.

        With several seeds, the interval is that of the mean over seeds; with one, the bootstrap interval
        over utterances.
        """
        found = [x.rates[metric] for x in self.evaluations_of(label, split, attention) if metric in x.rates]
        if not found:
            return None
        if len(found) == 1:
            low, high = found[0]["interval"] or (None, None)  # unknown for a single utterance
            return Estimate(found[0]["rate"], low, high, 1, "utterances")
        return over_seeds([rate["rate"] for rate in found])

    def dev_measure(self) -> str:
        """Return the name of the validation measure."""
        return next((x.dev_error_name for x in self.trainings if x.dev_error_name), "dev_error")

    def dev_error(self, label: str) -> Estimate | None:
        """Return a candidate's mean validation measure over its seeds; None if no training has finished."""
        found = [x.dev_error for x in self.trainings_of(label) if x.dev_error is not None]
        return over_seeds(found) if found else None

    def forward_time(self, label: str, split: str, attention: str | None = None) -> Estimate | None:
        """Return the seconds of a forward pass over a split with the range of its repeats.

        The protocol's clock decides between wall-clock and CPU time. None if the pass was not timed.
        """
        cpu = self.clock == "cpu"
        for x in self.evaluations_of(label, split, attention):
            median = x.forward_cpu_s if cpu else x.forward_s
            if median is not None:
                repeats = x.forward_cpu_repeats_s if cpu else x.forward_repeats_s
                return spread(repeats or [median], "repeats")
        return None

    def front(self, split: str) -> list[str]:
        """Return the candidates on the Pareto front of time and error rate, the fastest first."""
        points = {}
        for candidate in self.candidates:
            time = self.forward_time(candidate.label, split)
            rate = self.error_rate(candidate.label, split, next(iter(self.metrics(split)), ""))
            if time is not None and rate is not None:
                points[candidate.label] = (time, rate)
        labels = list(points)
        return [labels[i] for i in pareto_front(list(points.values()))]


def write_results(results: Results, folder: Path) -> None:
    """Write results.json and results.csv (one row per evaluation, together with its training)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(asdict(results), folder / "results.json")
    _write_csv(results, folder / "results.csv")


def read_results(path: Path) -> Results:
    """Read a results.json file, or the one in a folder.

    Raises:
        UserError: the file is missing, is not JSON or has another format.
    """
    path = path / "results.json" if path.is_dir() else path
    values = read_json(path, "results of asr compare")
    if values.get("format") != FORMAT:
        raise UserError(f"{path}: expected results of format {FORMAT}, found {values.get('format')!r}")
    results: Results = build(Results, values, str(path))
    try:
        datetime.fromisoformat(results.created)
    except ValueError:
        raise UserError(f"{path}: created: expected an ISO 8601 date, found {results.created!r}") from None
    return results


def _write_csv(results: Results, path: Path) -> None:
    trainings = {(x.candidate, x.seed): x for x in results.trainings}
    of_training = [x.name for x in fields(Training) if x.name not in ("candidate", "seed", "curve")]
    rows = []
    for evaluation in results.evaluations:
        candidate = results.candidate(evaluation.candidate)
        row: dict[str, Any] = {"recipe": results.recipe, "candidate": evaluation.candidate}
        row |= {"trained_with": candidate.attention, "layers": candidate.layers, "seed": evaluation.seed}
        row |= {name: getattr(evaluation, name) for name in ("split", "attention", "decoder", "status")}
        for metric in results.metrics():
            rate = evaluation.rates.get(metric, {})
            low, high = rate.get("interval") or (None, None)
            row |= {metric: rate.get("rate"), f"{metric}_low": low, f"{metric}_high": high}
            counts = ("substitutions", "deletions", "insertions", "length")
            row |= {f"{metric}_{name}": rate.get(name) for name in counts}
        for name in ("forward", "forward_cpu"):
            repeats = getattr(evaluation, f"{name}_repeats_s")
            row[f"{name}_s"] = getattr(evaluation, f"{name}_s")
            row |= {f"{name}_low_s": min(repeats, default=None), f"{name}_high_s": max(repeats, default=None)}
        others = ("audio_s", "utterances", "decode_s", "backend", "error")
        row |= {name: getattr(evaluation, name) for name in others}
        training = trainings[evaluation.candidate, evaluation.seed]
        row |= {f"training_{name}": getattr(training, name) for name in of_training}
        rows.append(row)
    names = list(rows[0]) if rows else ["candidate"]
    write_table(path, names, ([row[name] for name in names] for row in rows))
