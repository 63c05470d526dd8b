"""Data of a comparison: manifests with their sizes, or the items of a recipe without recordings."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np

from asr.compare.records import SplitData
from asr.data.lines import shards
from asr.data.manifest import read_cuts
from asr.data.places import is_manifest, manifest_path, split_beside
from asr.data.stream import NumberedBatches
from asr.errors import UserError
from asr.training.options import TrainConfig, recipe_task
from asr.training.recognition import training_lexicon

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
HELD_OUT = ("dev", "test")  # splits of recipes without recordings


def find_manifests(protocol: TrainConfig, splits: list[str]) -> dict[str, Path]:
    """Return the manifests of train, dev and the evaluated splits; none for a recipe without recordings.

    Raises:
        UserError: a manifest is missing, or two have the same name.
    """
    if recipe_task(protocol.recipe.name):
        return {}
    if not protocol.data.train:
        raise UserError("data.train is empty: name a recipe (recipe=demo) or manifests (data.train=[path])")
    places = protocol.data.train
    names = ["train", *(f"train {i + 1}" for i in range(1, len(places)))]
    found = {name: manifest_path(place, "train") for name, place in zip(names, places, strict=True)}
    dev = protocol.data.dev
    found["dev"] = manifest_path(dev, "dev") if dev else split_beside(places[0], "dev")
    for split in sorted(splits, key=is_manifest):  # names, then manifests
        name = split_name(split)
        if not is_manifest(split):
            found.setdefault(name, split_beside(places[0], split))
        elif os.path.abspath(found.setdefault(name, Path(split))) != os.path.abspath(split):
            raise UserError(f"{split}: another manifest is also called {name}, {found[name]}: rename one")
    for name, path in found.items():
        if not (path.is_file() or shards(path)):
            others = sorted(split_name(str(file)) for file in path.parent.glob("*.jsonl.gz"))
            hint = f"the folder has: {', '.join(others)}" if others else "asr prepare creates it"
            raise UserError(f"{path}: expected the manifest of {name}, found no such file ({hint})")
    return found


def split_name(split: str) -> str:
    """Return the name of a split, given as a name or as a manifest."""
    return Path(split).name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".cuts")


def read_split(manifest: Path, digest: str, frame_shift_ms: float) -> SplitData:
    """Return the size of a manifest and the quantiles of its utterances' lengths."""
    durations_s = read_cuts(manifest).durations_s
    frames = durations_s * 1000 / frame_shift_ms
    quantiles = {str(q): round(float(np.quantile(frames, q))) for q in QUANTILES}
    return SplitData(str(manifest), digest, len(durations_s), float(durations_s.sum()) / 3600, quantiles)


def training_data(training: TrainConfig, digest: Callable[[Path], str]) -> dict[str, str]:
    """Return the digests of a training's manifests and lexicon."""
    lexicon = training_lexicon(training)
    data = {name: digest(path) for name, path in find_manifests(training, []).items()}
    return data | {"lexicon": lexicon.digest if lexicon else ""}


def read_items(splits: list[str], trainings: Mapping[str, TrainConfig]) -> dict[str, NumberedBatches]:
    """Return the data of a recipe without recordings by candidate.

    Raises:
        UserError: a split other than dev and test, or one without files.
    """
    from asr.training.labelling import data_key  # these two load Lightning
    from asr.training.run import build_task

    known: dict[str, NumberedBatches] = {}  # by the options that the data depend on
    found = {}
    for label, training in trainings.items():
        key = data_key(training)
        if key not in known:
            known[key] = cast(NumberedBatches, build_task(training, resuming=True)[1])
            for split in splits:
                if split not in HELD_OUT:
                    raise UserError(f"splits=[{split}]: expected {' | '.join(HELD_OUT)}")
                known[key].held_out(split, 1)
        found[label] = known[key]
    return found
