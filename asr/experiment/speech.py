"""Recordings as the workload of a comparison: their manifests, decoding and scoring, and forward passes."""

import functools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from asr.augmentation.sources import all_sources, sources_digests
from asr.config import from_stored, to_dict
from asr.data.batch import Batch, Utterances
from asr.data.lines import shards
from asr.data.manifest import manifest_digest, read_cuts
from asr.data.places import is_manifest, manifest_path, split_beside, split_of
from asr.data.sampler import BatchPlan, plan_by_length
from asr.errors import UserError
from asr.experiment.cell import Cell, code_entry
from asr.experiment.options import METRICS, OFFICIAL, CompareConfig
from asr.experiment.records import Evaluation, ItemErrors, SplitData
from asr.experiment.request import Decoding
from asr.experiment.timing import Runner
from asr.experiment.variant import Variant
from asr.files import read_as
from asr.model.acoustic_model import AcousticModel
from asr.recognizer import Recognizer
from asr.records.run_folder import DECODING, DecodeRecord
from asr.scoring.official import find_hubscr, reference_digests
from asr.scoring.options import ScoreOptions
from asr.scoring.run import read_score, score_paths
from asr.scoring.score import Score
from asr.scoring.statistics import Values
from asr.search.options import DecodeOptions
from asr.text.known_words import KnownWords
from asr.training.lexicon import training_lexicon
from asr.training.options import TrainConfig

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class Speech:
    """The workload of recipes with recordings; `Labels`, without, has the same attributes and methods.

    Args:
        protocol: training options that all candidates share.
        options: options of the comparison.
        decoding: search options for all evaluations.

    Attributes:
        data: splits by name, including train and dev; empty without recordings.
        splits: names of the splits to evaluate on.

    Raises:
        UserError: a manifest is missing, two have the same name, or sclite is missing for metric=official.
    """

    def __init__(self, protocol: TrainConfig, options: CompareConfig, decoding: Decoding) -> None:
        self.decoding, self.frames_per_batch = decoding, protocol.data.frames_per_batch
        self.official = options.metric.startswith(OFFICIAL)
        if self.official:
            find_hubscr()
        manifests = find_manifests(protocol, [*options.splits, *([options.tune] if options.tune else [])])
        self.digest = functools.cache(manifest_digest)
        shift_ms = protocol.features.frame_shift_ms
        self.data = {name: read_split(path, self.digest(path), shift_ms) for name, path in manifests.items()}
        self.splits = list(dict.fromkeys(map(split_of, options.splits)))

    def digests(self, label: str, training: TrainConfig) -> dict[str, str]:
        """Return the digests of a training's inputs, as in its run's environment.json, and of its lexicon.

        Raises:
            UserError: a manifest, or another file or folder of the training, is missing.
        """
        lexicon = training_lexicon(training)
        augment = training.augment
        sources = all_sources(augment, training.features.sample_rate)
        data = {name: self.digest(path) for name, path in find_manifests(training, []).items()}
        data |= sources_digests(augment, sources) | training.select.digests()
        return data | {"lexicon": lexicon.digest if lexicon else ""}

    def evaluation(self, label: str, training: Cell, split: str, variant: str) -> Cell:
        """Return the cell that evaluates a variant of a candidate's training."""
        decoding, data = self.decoding, self.data
        manifest = data[split].manifest
        settings = decoding.settings()
        how = Variant.read(variant)
        if how.layers:
            raise UserError(f"evaluate=[{variant}]: only Whisper runs with fewer; train with layers=")
        settings["options"] |= {"split": split, "data": manifest} | how.options()
        settings |= {"training": training.key, "data": data[split].hash} | code_entry(how.attention)
        # Scoring rules and references beside the manifest change the rates, but not the manifest's digest.
        settings |= {"reference": reference_digests(Path(manifest))}
        settings |= {"official": True} if self.official else {}
        settings |= {"threads": training.settings["options"]["trainer.threads"]}
        if decoding.options.tune:
            tune = split_of(decoding.options.tune)
            settings["options"]["tune"] = data[tune].manifest
            settings["tune"] = data[tune].hash
        name = training.name.replace("trainings/", "evaluations/")
        path = f"{name}/{split}/{decoding.system(how)}"
        return Cell(path, "evaluation", settings, training.name, decoding.unkeyed())

    def timing(self, split: str, evaluations: list[Cell]) -> dict[str, Any]:
        """Return all that the times of these evaluations' models depend on, besides the models."""
        data = self.data[split]
        return {"manifest": data.manifest, "data": data.hash, "frames_per_batch": self.frames_per_batch}

    def command(self, split: str) -> tuple[str, list[str]]:
        """Return the command that repeats an evaluation, and its options besides split and variant."""
        return "decode", [f"data={self.data[split].manifest}", *self.decoding.overrides()]

    def complete(self, evaluation: Evaluation, folder: Path, cell: Cell) -> None:
        """Enter a finished cell's outcome into its evaluation, given the comparison's folder."""
        score = read_score(folder / cell.name)
        about = read_as(DecodeRecord, folder / cell.name / DECODING)
        evaluation.rates = rates_of(score)
        evaluation.audio_s, evaluation.utterances = score["audio_s"], score["utterances"]
        evaluation.decode_s, evaluation.backend, evaluation.beam = about.decode_s, about.backend, about.beam
        if about.known_words:
            evaluation.closed = KnownWords(**about.known_words).closed
        evaluation.constant = score.get("constant", False)

    @staticmethod
    def evaluate(run: Path, folder: Path, cell: Cell, advance: Callable[[float], None]) -> dict[str, Any]:
        """Decode and score into the folder; the result is `ItemErrors`."""
        options = from_stored(DecodeOptions, cell.settings["options"] | cell.unkeyed, cell.name)
        options.output = str(folder)
        recognizer = Recognizer.load_as(run, options)
        recognizer.decode(options, weights_in=folder, advance=advance)
        scoring = ScoreOptions(details=False, official=cell.settings.get("official", False))
        [score] = score_paths([options.output], scoring, console=Console(file=sys.stdout))
        return asdict(item_errors(score))

    @staticmethod
    def passes(models: list[tuple[Path, str]], settings: dict[str, Any], device: str) -> "SpeechPasses":
        """Return the models of a timing cell, given by run folder and variant, with their inputs."""
        manifest, precision = Path(settings["manifest"]), settings["precision"]
        return SpeechPasses(models, manifest, settings["frames_per_batch"], device, precision)


class SpeechPasses:
    """Encoder and head on every utterance of a manifest.

    Args:
        models: run folder and variant of each model.
        manifest: manifest of the split.
        frames_per_batch: padded frames per batch.
        device: `cpu` or `cuda`.
        precision: precision of matrix products.
    """

    def __init__(
        self,
        models: list[tuple[Path, str]],
        manifest: Path,
        frames_per_batch: int,
        device: str,
        precision: str = "fp32",
    ) -> None:
        self.device = torch.device(device)
        self.runners: list[Runner] = []
        self.models: dict[str, AcousticModel] = {}  # one for each kind of input
        for run, variant in models:
            how = {"precision": precision} | Variant.read(variant).options()
            model = Recognizer.load(run, device=device, **how).model
            input_key = json.dumps([to_dict(model.config.features), model.config.pretrained])
            self.models.setdefault(input_key, model)
            self.runners.append(Runner(model.emit, input_key))
        self.cuts = read_cuts(manifest)
        frame_shift_ms = next(iter(self.models.values())).config.features.frame_shift_ms
        lengths = np.maximum(1, np.rint(self.cuts.durations_s * 1000 / frame_shift_ms)).astype(np.int64)
        self.plans = plan_by_length(lengths, frames_per_batch)
        self.batches = len(self.plans)

    def inputs(self, number: int) -> dict[str, tuple[Tensor, Tensor]]:
        """Return normalised features and frames, by the front end that computes them."""
        plan = BatchPlan(tuple(self.plans[number].tolist()))
        batches: dict[int, Batch] = {}  # by sample rate
        normalised = {}
        for input_key, model in self.models.items():
            rate = model.sample_rate
            if rate not in batches:
                batches[rate] = Utterances(self.cuts, None, rate)[plan].to(self.device)
            features, frames = model.front_end(batches[rate].audio, batches[rate].audio_lengths)
            normalised[input_key] = model.normalisation(features, frames), frames
        return normalised


def find_manifests(protocol: TrainConfig, splits: list[str]) -> dict[str, Path]:
    """Return the manifests of train, dev and the evaluated splits.

    Raises:
        UserError: a manifest is missing, or two have the same name.
    """
    if not protocol.data.train:
        raise UserError("data.train is empty: name a recipe (recipe=demo) or manifests (data.train=[path])")
    places = protocol.data.train
    names = ["train", *(f"train {i + 1}" for i in range(1, len(places)))]
    manifests = {name: manifest_path(place, "train") for name, place in zip(names, places, strict=True)}
    dev = protocol.data.dev
    manifests["dev"] = manifest_path(dev, "dev") if dev else split_beside(places[0], "dev")
    for split in sorted(splits, key=is_manifest):  # names, then manifests
        name = split_of(split)
        if not is_manifest(split):
            manifests.setdefault(name, split_beside(places[0], split))
        elif os.path.abspath(manifests.setdefault(name, Path(split))) != os.path.abspath(split):
            raise UserError(f"{split}: another manifest is also called {name}, {manifests[name]}: rename one")
    for name, path in manifests.items():
        if not (path.is_file() or shards(path)):
            others = sorted(split_of(str(file)) for file in path.parent.glob("*.jsonl.gz"))
            hint = f"the folder has: {', '.join(others)}" if others else "asr prepare creates it"
            raise UserError(f"{path}: expected the manifest of {name}, found no such file ({hint})")
    return manifests


def read_split(manifest: Path, digest: str, frame_shift_ms: float) -> SplitData:
    """Return the size of a manifest and the quantiles of its utterances' lengths."""
    return split_data(manifest, digest, read_cuts(manifest).durations_s, frame_shift_ms)


def split_data(manifest: Path, digest: str, durations_s: Values, frame_shift_ms: float) -> SplitData:
    """Return the size of a manifest whose utterances have these durations."""
    frames = durations_s * 1000 / frame_shift_ms
    quantiles = {str(q): round(float(np.quantile(frames, q))) for q in QUANTILES}
    return SplitData(str(manifest), digest, len(durations_s), float(durations_s.sum()) / 3600, quantiles)


def item_errors(score: Score) -> ItemErrors:
    """Return the errors of each utterance."""
    counts = [x.counts for x in sorted(score.utterances, key=lambda x: x.id)]
    return ItemErrors(
        {metric: [x[metric].errors for x in counts] for metric in score.rates},
        {metric: [x[metric].length for x in counts] for metric in score.rates},
    )


def rates_of(score: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the error rates of a score.json, official ones as `official`, `official-swbd`, …"""
    rates = {name: score[name] for name in METRICS if name in score}
    for subset, counts in score.get("official", {}).items():
        rates["official" if subset == "all" else f"official-{subset}"] = counts
    return rates
