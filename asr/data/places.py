"""Locations of data in options: folders and manifests, and a split's files in them."""

import re
from pathlib import Path

from asr.data.lines import shards
from asr.errors import UserError
from asr.records.run_folder import RunFolder

ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://|pipe:")
LEXICON, REFERENCES, WORD_RULES, GLM = "lexicon.txt", "references.txt", "scoring.json", "hub5.glm"


def is_manifest(place: str | Path) -> bool:
    """Return whether a path is named like a manifest, gzipped or not."""
    return str(place).endswith((".jsonl.gz", ".jsonl"))


def manifest_path(place: str, split: str) -> Path:
    """Return the manifest of a split, or its folder in Lhotse Shar format.

    Args:
        place: a manifest or Shar folder, or a folder of several.
        split: name of the split.

    Raises:
        UserError: `place` is an address or a command.
    """
    path = _local(place)
    if is_manifest(path) or shards(path):
        return path
    return path / split if shards(path / split) else path / f"{split}.cuts.jsonl.gz"


def split_beside(place: str, split: str) -> Path:
    """Return the manifest of a split in the folder `place`, or beside the manifest `place`."""
    return manifest_path(str(prepared_folder(place)), split)


def prepared_folder(place: str) -> Path:
    """Return the folder `place`, or the folder that contains the manifest or Shar folder `place`."""
    path = _local(place)
    return path.parent if is_manifest(path) or shards(path) else path


def chosen_manifest(data: str, split: str, run_folder: Path) -> Path:
    """Return the manifest that the options `data` and `split` name; without data, one of the run's.

    Raises:
        UserError: the run's data are unknown, or another split is named beside a manifest.
    """
    path = manifest_path(data or training_folder(run_folder), split)
    if path == Path(data) and split not in ("test", split_of(path)):
        raise UserError(f"split={split}: has no effect with data={data}, which is a manifest")
    return path


def split_of(place: str | Path) -> str:
    """Return the name of a split, given as a name or as a manifest."""
    return Path(place).name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".cuts")


def place_in_run(manifest: Path, run_folder: Path) -> Path:
    """Return the folder for results on a manifest, within those of a run.

    It is `<split>` for the run's first training folder, else `<data folder>/<split>`.
    """
    data = prepared_folder(str(manifest)).resolve()
    try:
        own = data == Path(training_folder(run_folder)).resolve()
    except UserError:
        own = False
    return Path("" if own else data.name, split_of(manifest))


def _local(place: str) -> Path:
    if ADDRESS.match(place):
        raise UserError(
            f"{place}: expected a path, found an address or a command: copy or mount the data first, because "
            "utterances are loaded in any order"
        )
    return Path(place)


def training_folder(run_folder: Path) -> str:
    """Return the first prepared folder that a run was trained on.

    Raises:
        UserError: the run folder has no config.yaml, or it names no manifests.
    """
    run = RunFolder(run_folder)
    if not run.options.is_file():
        raise UserError(f"{run.options}: no such file; name the data with data=<prepared folder or manifest>")
    try:
        return str(prepared_folder(run.read_options()["data"]["train"][0]))
    except (KeyError, TypeError, IndexError):
        raise UserError(f"{run.options}: expected a list of manifests in data.train, found none") from None
