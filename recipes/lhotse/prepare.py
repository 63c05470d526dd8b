"""Recipe `lhotse`: convert lhotse cuts, or recordings and supervisions, to checked manifests."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lhotse import CutSet, MonoCut, RecordingSet, SupervisionSet, load_manifest

from asr.config import option
from asr.errors import UserError
from asr.preparation import Preparation
from asr.preparation.own_data import OwnDataOptions, prepare_rows
from asr.preparation.rows import Row

SUFFIX = re.compile(r"\.(?:jsonl|json|yaml)(?:\.gz)?$")


@dataclass
class Options(OwnDataOptions):
    """Location of the manifests."""

    source: str = option(
        "",
        help="a manifest of cuts, or a folder with <split>.cuts.jsonl.gz, x_cuts_<split>.jsonl.gz, or pairs "
        "x_recordings_<split>.jsonl.gz and x_supervisions_<split>.jsonl.gz",
    )


def prepare(options: Options, folder: Path) -> None:
    """Write manifests, lexicon.txt and lm/train.txt below `folder`; the audio stays in place.

    A cut with several supervisions becomes one utterance per supervision.

    Raises:
        UserError: `source` holds no manifests, or entries are broken without `allow_partial`.
    """
    manifests = find_manifests(options.source)

    def read(preparation: Preparation) -> Iterator[Row]:
        for split, paths in manifests.items():
            yield from read_cuts(paths, split, preparation)

    sources = [path for paths in manifests.values() for path in paths]
    prepare_rows("lhotse", options, folder, sources, read)


def find_manifests(source: str) -> dict[str, list[Path]]:
    """Return the manifests of each split: cuts, or recordings and supervisions.

    Raises:
        UserError: there are none, or recordings lack their supervisions.
    """
    if not source:
        raise UserError("source= is needed: name a manifest of lhotse cuts, or a folder of manifests")
    path = Path(source)
    if path.is_file():
        return {"": [path]}
    if not path.is_dir():
        raise UserError(f"source={source}: expected a manifest or a folder, found neither")
    files = {
        SUFFIX.sub("", child.name): child for child in sorted(path.iterdir()) if SUFFIX.search(child.name)
    }
    cuts = {_split(stem): [file] for stem, file in files.items() if re.search(r"(^|[._])cuts([._]|$)", stem)}
    if cuts:
        return cuts
    pairs = {}
    for stem, file in files.items():
        if "recordings" in stem:
            other = files.get(stem.replace("recordings", "supervisions"))
            if other is None:
                raise UserError(f"{file}: expected its supervisions beside it, found none")
            pairs[_split(stem)] = [file, other]
    if not pairs:
        raise UserError(f"source={source}: expected manifests of cuts, or of recordings, found none")
    return pairs


def read_cuts(paths: list[Path], split: str, preparation: Preparation) -> Iterator[Row]:
    """Yield the utterances of a split; unusable cuts become problems of `preparation`."""
    cuts: Iterable[Any] = []
    with preparation.reporting():
        cuts = _load(paths)
    for cut in cuts:
        named = f"{paths[0]}: cut {cut.id!r}"
        with preparation.reporting():
            if not isinstance(cut, MonoCut) or cut.recording is None:
                raise UserError(f"{named}: expected a MonoCut with a recording, found {type(cut).__name__}")
            source = cut.recording.sources[0]
            if source.type != "file" or cut.recording.transforms:
                raise UserError(
                    f"{named}: expected unmodified audio in a file, found a {source.type}"
                    + (" with transforms" if cut.recording.transforms else "")
                )
            if not cut.supervisions:
                raise UserError(f"{named}: expected a supervision, found none")
            alone = len(cut.supervisions) == 1
            for supervision in cut.supervisions:
                yield Row(
                    cut.id if alone and len(paths) == 1 else supervision.id,
                    _path(source.source, paths[0]),
                    supervision.text or "",
                    named,
                    speaker=supervision.speaker or "",
                    split=split,
                    start_s=cut.start if alone else cut.start + supervision.start,
                    duration_s=cut.duration if alone else supervision.duration,
                    channel=int(cut.channel),
                    recording=cut.recording.id,
                )


def _load(paths: list[Path]) -> CutSet:
    try:
        loaded: list[Any] = [load_manifest(path) for path in paths]
        if isinstance(loaded[0], CutSet):
            return loaded[0]
        if [type(manifest) for manifest in loaded] != [RecordingSet, SupervisionSet]:
            raise UserError(f"{paths[0]}: expected cuts, found {type(loaded[0]).__name__}")
        cuts = CutSet.from_manifests(recordings=loaded[0], supervisions=loaded[1])
        return cuts.trim_to_supervisions(keep_overlapping=False)
    except UserError:
        raise
    except Exception as error:  # lhotse passes on any exception of its parsers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{paths[0]}: expected a lhotse manifest, found one that can't be read ({reason})"
        ) from None


def _path(written: str, manifest: Path) -> str:
    """Resolve against the current folder, as lhotse does, or else against the manifest's folder."""
    return written if Path(written).exists() else str(manifest.parent / written)


def _split(stem: str) -> str:
    """Return the split in a file name: dev-clean for `x_cuts_dev-clean` and `dev-clean.cuts`."""
    after = re.search(r"(?:cuts|recordings)[._](.+)$", stem)
    return after[1] if after else re.sub(r"[._]?cuts$", "", stem)
