"""Locations of data in options: folders, manifests and addresses, and the files of a split there."""

import itertools
from pathlib import Path

from asr.data.lines import shards
from asr.data.remote import copy_of, fetched, is_address
from asr.errors import UserError
from asr.records.run_folder import RunFolder

LEXICON, REFERENCES, WORD_RULES, GLM = "lexicon.txt", "references.txt", "scoring.json", "hub5.glm"


def companions(split: str) -> tuple[str, ...]:
    """Return the names of the files beside the manifest of a split that training and scoring read."""
    return LEXICON, REFERENCES, WORD_RULES, GLM, f"{split}.stm"


def is_manifest(place: str | Path) -> bool:
    """Return whether a path has the name of a manifest, gzipped or not."""
    return str(place).endswith((".jsonl.gz", ".jsonl"))


def manifest_path(place: str, split: str) -> Path:
    """Return the manifest of a split, or its folder in Lhotse Shar format.

    Args:
        place: a manifest or Shar folder itself, or a folder of several written by `asr prepare` or
            `asr export-data`; or the address of Shar folders, which are copied at the first use.
        split: name of the split.

    Raises:
        UserError: an address has no Shar folder, is of another kind, or can't be copied.
    """
    if is_address(place):
        addresses = place.rstrip("/"), f"{place.rstrip('/')}/{split}"
        copies = [copy_of(address) for address in addresses if shards(copy_of(address))]
        for folder in itertools.chain(copies, (fetched(address, companions(split)) for address in addresses)):
            if folder is not None:
                return folder
        raise UserError(f"{place}: expected a folder in Lhotse Shar format, found no cuts.000000.jsonl.gz")
    path = Path(place)
    if is_manifest(path) or shards(path):
        return path
    return path / split if shards(path / split) else path / f"{split}.cuts.jsonl.gz"


def split_beside(place: str, split: str) -> Path:
    """Return the manifest of a split in the folder `place`, or beside the manifest `place`."""
    return manifest_path(_prepared_place(place), split)


def prepared_folder(place: str) -> Path:
    """Return the folder `place`, or the one that contains the manifest or Shar folder `place`.

    For an address, it is the folder of the copies.
    """
    found = _prepared_place(place)
    return copy_of(found) if is_address(found) else Path(found)


def _prepared_place(place: str) -> str:
    if is_address(place):
        place = place.rstrip("/")
        return place.rpartition("/")[0] if shards(copy_of(place)) else place
    path = Path(place)
    return str(path.parent if is_manifest(path) or shards(path) else path)


def training_folder(run_folder: Path) -> str:
    """Return the first prepared folder that a run was trained on, or its address.

    Raises:
        UserError: the run folder has no config.yaml, or none that names manifests.
    """
    run = RunFolder(run_folder)
    if not run.options.is_file():
        raise UserError(f"{run.options}: no such file; name the data with data=<prepared folder or manifest>")
    try:
        return _prepared_place(run.read_options()["data"]["train"][0])
    except (KeyError, TypeError, IndexError):
        raise UserError(f"{run.options}: expected a list of manifests in data.train, found none") from None
