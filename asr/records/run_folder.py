"""The run folder: names of its files, and schemas of its JSON files.

Unknown entries of a file are ignored, and most missing ones have defaults, so that runs of other versions of
the program, which may have taken days, stay usable.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asr import config
from asr.errors import UserError
from asr.files import near_path, read_as

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
# Files of a decode folder, <run>/decode/[<data>/]<split>/<system>.
HYPOTHESES = "hyp.jsonl"
DECODING = "decode.json"
ALIGNING = "align.json"  # of a split's alignments
SCORE = "score.json"
TABLES = ("alignments.txt", "speakers.tsv", "lengths.tsv", "confusions.tsv")
EXPORTS = ("ref.trn", "hyp.trn", "ref.stm", "hyp.ctm")
OFFICIAL = "official"  # folder of the official scores
BEST = re.compile(r"best-(\d+(?:\.\d+)?)(?:-loss(-?\d+\.\d+))?(?:-.*)?")  # stem of a best checkpoint


@dataclass(frozen=True, kw_only=True)
class RunEnvironment:
    """The environment of a run at its start: environment.json.

    Attributes:
        run: identity of the run, which its checkpoints share.
        commit: version of the program; None outside a checkout.
        data: digests of the training and development data, of recordings for augmentation, and of the files
            of the search that selects checkpoints.
        start: digest of the initial weights; empty if they are random.
        replanned: whether the run had another plan before it resumed, e.g. fewer steps, at the end of which
            the learning rate was low.
        attention: mechanism.
        backend: backend of attention.
        code: digests of the files of mechanisms from outside the program, by module.
        tokenizer, lexicon, label_ngram: digests of what the labels depend on; None if not used.
        machine, processor, cores, threads, gpus: hardware.
    """

    run: str
    commit: str | None
    data: dict[str, str]
    start: str = ""
    replanned: bool = False
    attention: str | None = None
    backend: str | None = None
    code: dict[str, str] = field(default_factory=dict)
    tokenizer: str | None = None
    lexicon: str | None = None
    label_ngram: str | None = None
    machine: str | None = None
    processor: str | None = None
    cores: int | None = None
    threads: int | None = None
    gpus: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class TrainingSummary:
    """Outcome and cost of a finished training, measured by its first process: training.json.

    Attributes:
        frames: feature frames without padding.
        train_s, train_cpu_s: wall-clock and CPU time of training steps, including the wait for data.
        data_wait_share: fraction of `train_s` spent waiting for data.
        peak_memory_mib, peak_worker_memory_mib: peak memory of this process, and of the largest loader
            (on Windows: None and 0).
        peak_gpu_memory_mib: peak of PyTorch's allocator; None without a GPU.
        steps, planned_steps: optimiser steps taken, and planned (0: until a time budget is spent).
        budget_s, budget_clock: time budget, and `wall` or `cpu`; None without a budget.
        parameters: number of trained parameters.
        epochs: passes over the training data, fractional.
        dev_error_rate: last validation measure.
        padding_share: fraction of padding in the first epoch.
        skipped_batches: batches whose loss or gradient was not finite, or which did not fit in memory.
    """

    frames: int
    train_s: float
    train_cpu_s: float
    frames_per_s: float
    data_wait_share: float
    peak_memory_mib: float | None
    peak_worker_memory_mib: float | None = None
    peak_gpu_memory_mib: float | None = None
    steps: int
    planned_steps: int
    budget_s: float | None = None
    budget_clock: str | None = None
    parameters: int
    epochs: float
    dev_error_rate: float | None = None
    seconds_per_epoch: float
    cpu_seconds_per_epoch: float | None = None
    padding_share: float | None = None
    skipped_batches: int


@dataclass(frozen=True, kw_only=True)
class DecodeRecord:
    """Origin of hypotheses: the entries of decode.json that are read again.

    Attributes:
        decode_s: time of loading, forward pass and search; None if unknown.
        manifest: manifest of the split.
        backend: backend of attention.
        beam: search options in effect; None for greedy search.
        lexicon: digest of the lexicon.
        pronunciations: counts of reference words by the origin of their pronunciation.
        known_words: counts of reference words in the search's vocabulary; None: it can spell any word.
        word_filter: the recipe's scoring rules.
    """

    decode_s: float | None
    manifest: str | None = None
    backend: str | None = None
    beam: dict[str, Any] | None = None
    lexicon: str | None = None
    pronunciations: dict[str, Any] | None = None
    known_words: dict[str, Any] | None = None
    word_filter: dict[str, Any] | None = None


class RunFolder:
    """The files of a training run.

    Args:
        path: folder.

    Attributes:
        options: config.yaml, the options.
        environment: environment.json, see `RunEnvironment`.
        summary: training.json, see `TrainingSummary`; only a finished training has it.
        metrics, curves: metrics.csv, and the folder of TensorBoard's events.
        heard: hypotheses.jsonl, a few dev utterances at every validation, see `Heard`.
        augmented: examples of augmented utterances, with augment.examples.
        left_out: left_out.tsv, the utterances excluded from training.
        tuned: decoder weights tuned by `tune=`.
        checkpoints: folder of the checkpoints.
        last, previous: the resume point, and the previous one.
        average: average of the best checkpoints.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.options = self.path / "config.yaml"
        self.environment = self.path / "environment.json"
        self.summary = self.path / "training.json"
        self.metrics = self.path / "metrics.csv"
        self.curves = self.path / "tensorboard"
        self.heard = self.path / "hypotheses.jsonl"
        self.left_out = self.path / "left_out.tsv"
        self.augmented = self.path / "augmented"
        self.tuned = self.path / "decode" / "tuned.json"
        self.checkpoints = self.path / "checkpoints"
        self.last = self.checkpoints / LAST
        self.previous = self.checkpoints / PREVIOUS
        self.average = self.checkpoints / "average.ckpt"

    @classmethod
    def finished(cls, place: Path, levels: str = "**") -> Iterator["RunFolder"]:
        """Yield the folders of finished trainings below `place`; `levels`: pattern of folders in between."""
        yield from map(cls, sorted(path.parent for path in place.glob(f"{levels}/training.json")))

    def decoded(self, data: Path, system: str) -> Path:
        """Return the folder for hypotheses; `data`: see `place_in_run`; `system`: mechanism and decoder."""
        return self.path / "decode" / data / system

    def aligned(self, data: Path) -> Path:
        """Return the folder for forced alignments; `data`: see `place_in_run`."""
        return self.path / "align" / data

    def saved(self) -> list[Path]:
        """Return all checkpoints, sorted by name."""
        return sorted(self.checkpoints.glob("*.ckpt"))

    def best(self) -> list[Path]:
        """Return the best checkpoints, best first."""
        return sorted((x for x in self.saved() if BEST.fullmatch(x.stem)), key=best_measures)

    def best_at(self, error_rate: float, loss: float, step: int) -> Path:
        """Return the file for a checkpoint that is among the best."""
        return self.checkpoints / f"{best_name(error_rate, loss, step)}.ckpt"

    def checkpoint(self, which: str = "auto") -> Path:
        """Return a checkpoint.

        Args:
            which: `auto` (the average if there is one, else the best, else the last), `best`, `last`, or the
                name of a file in `checkpoints/` with or without its suffix.

        Raises:
            UserError: the checkpoint doesn't exist; the message lists existing ones.
        """
        files = {file.stem: file for file in self.saved()}
        if not files:
            raise UserError(f"{self.path}: no checkpoint{self._near()}")
        aliases = {stem: stem for stem in files}
        if best := self.best():
            aliases["best"] = best[0].stem
        if which == "auto":
            which = next(name for name in ("average", "best", "last", *files) if name in aliases)
        which = which.removesuffix(".ckpt")
        if which not in aliases:
            raise UserError(f"{self.path}: no checkpoint {which!r} (found: {', '.join(aliases)})")
        return files[aliases[which]]

    def _near(self) -> str:
        """Return what there is instead of checkpoints, in brackets."""
        if not self.path.exists():
            return near_path(self.path) or " (no such file or folder)"
        runs = sorted(x.parent.name for x in self.path.glob("*/config.yaml"))
        return f" (the runs there: {', '.join(runs)})" if runs else f" (expected {self.checkpoints}/*.ckpt)"

    def begun(self) -> bool:
        """Return whether the training has taken a step."""
        return bool(self.saved()) or (self.metrics.exists() and self.metrics.read_bytes().count(b"\n") > 1)

    def read_options(self) -> dict[str, Any]:
        """Return the content of config.yaml.

        Raises:
            FileNotFoundError: the file is missing.
            UserError: the file isn't YAML with a mapping at its top level.
        """
        return config.load_yaml(self.options)

    def read_environment(self, what: str = "the inputs of a run") -> RunEnvironment:
        """Read environment.json; `what` describes it in messages.

        Raises:
            UserError: the file is missing or doesn't fit the schema.
        """
        return read_as(RunEnvironment, self.environment, what)

    def read_summary(self) -> TrainingSummary:
        """Read training.json.

        Raises:
            UserError: the file is missing, because training hasn't finished, or doesn't fit the schema.
        """
        return read_as(TrainingSummary, self.summary, "the summary of a finished training")


def best_name(error_rate: float, loss: float, step: int) -> str:
    """Return the stem of a best checkpoint; see `best_measures`."""
    percent = min(1e9, 100 * error_rate)  # NaN isn't below
    finite = max(-99_999.0, min(99_999.0, loss))
    return f"best-{percent:08.3f}-loss{finite:010.4f}-step{step:07d}"


def best_measures(path: Path) -> tuple[float, float, str]:
    """Return the sort key of the best checkpoints, from the file's name: error rate, loss, stem.

    The loss breaks ties: in their first steps, models recognise nothing, so error rates are equal. Both are
    compared as numbers, because the loss of MMI may be negative, and users may rename checkpoints.

    Example:
        >>> best_measures(Path(f"{best_name(0.31, -2.5, 900)}.ckpt"))[:2]
        (31.0, -2.5)
    """
    match = BEST.fullmatch(path.stem)
    assert match is not None
    return float(match[1]), float(match[2] or 0), path.stem
