"""Recipe `lhotse`: converts lhotse cuts, or recordings and supervisions, to checked manifests."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from asr.data.entries import check_audio
from asr.data.lines import manifest_lines
from asr.errors import UserError
from asr.files import parse_json
from asr.preparation.own_data import prepare_rows
from asr.preparation.rows import Row, channel_field, number_field, text_field
from asr.preparation.run import Preparation
from asr.text.files import read_text

from .options import Options

SUFFIX = re.compile(r"\.(?:jsonl|json|yaml)(?:\.gz)?$")


def prepare(options: Options, folder: Path) -> None:
    """Write manifests, lexicon.txt and lm/train.txt below `folder`; the audio stays in place.

    A cut with several supervisions becomes one utterance per supervision.

    Raises:
        UserError: `source` contains no manifests, or entries are broken without `allow_partial`.
    """
    manifests = find_manifests(options.source)

    def read(preparation: Preparation) -> Iterator[Row]:
        for split, paths in manifests:
            yield from usable_cuts(paths, split, preparation)

    sources = [path for _, paths in manifests for path in paths]
    prepare_rows("lhotse", options, folder, sources, read)


def find_manifests(source: str) -> list[tuple[str, list[Path]]]:
    """Return the manifests with their splits: cuts, or recordings and supervisions.

    Raises:
        UserError: there are none, or recordings lack their supervisions.
    """
    if not source:
        raise UserError("source= is needed: name a manifest of lhotse cuts, or a folder of manifests")
    path = Path(source)
    if path.is_file():
        return [("", [path])]
    if not path.is_dir():
        raise UserError(f"source={source}: expected a manifest or a folder, found neither")
    files: dict[str, Path] = {}
    for child in sorted(path.iterdir()):
        if SUFFIX.search(child.name):
            other = files.setdefault(SUFFIX.sub("", child.name), child)
            if other is not child:
                raise UserError(f"{child}: expected one manifest of this name, found {other.name} too")
    cuts = [stem for stem in files if re.search(r"(^|[._])cuts([._]|$)", stem)]
    if cuts:
        return [(_split(stem), [files[stem]]) for stem in cuts]
    pairs = []
    for stem, file in files.items():
        if "recordings" in stem:
            supervisions = files.get(stem.replace("recordings", "supervisions"))
            if supervisions is None:
                raise UserError(f"{file}: expected its supervisions beside it, found none")
            pairs.append((_split(stem), [file, supervisions]))
    if not pairs:
        raise UserError(f"source={source}: expected manifests of cuts, or of recordings, found none")
    return pairs


def usable_cuts(paths: list[Path], split: str, preparation: Preparation) -> Iterator[Row]:
    """Yield the utterances of a split; unusable cuts become problems of `preparation`.

    The entries are read as plain data: lhotse would open a name such as `pipe:…` as a command.
    """
    cuts: Iterable[tuple[str, dict[str, Any]]] = _entries(paths[0], preparation)
    if len(paths) == 2:
        recordings = {entry.get("id"): entry for _, entry in cuts}
        cuts = (
            (
                where,
                {**entry, "recording": recordings.get(entry.get("recording_id")), "supervisions": [entry]},
            )
            for where, entry in _entries(paths[1], preparation)
        )
    for where, cut in cuts:
        with preparation.reporting():
            yield from _rows(cut, where, paths[0], split, preparation)


def _rows(
    cut: dict[str, Any], where: str, manifest: Path, split: str, preparation: Preparation
) -> Iterator[Row]:
    where = f"{where}: cut {text_field(cut.get('id'), 'id', where)!r}"
    kind = cut.get("type", "MonoCut")
    if kind not in ("MonoCut", "Cut"):
        raise UserError(f"{where}: expected a MonoCut with a recording, found {kind}")
    # Audio from commands, addresses or memory is rejected.
    check_audio(cut.get("recording"), where)
    supervisions = cut.get("supervisions")
    if not isinstance(supervisions, list) or not all(isinstance(x, dict) for x in supervisions):
        raise UserError(f"{where}: expected a list of supervisions, found {str(supervisions)[:60]!r}")
    if not supervisions:
        raise UserError(f"{where}: expected a supervision, found none")
    start_s = number_field(cut.get("start"), "start", where) or 0.0
    for supervision in supervisions:
        alone = len(supervisions) == 1
        placed = cut if alone else supervision
        inside_s = number_field(supervision.get("start"), "start", where) or 0.0
        yield Row(
            text_field(placed.get("id"), "id", where),
            _path(cut["recording"]["sources"][0]["source"], manifest, preparation),
            text_field(supervision.get("text"), "text", where),
            where,
            speaker=text_field(supervision.get("speaker"), "speaker", where),
            split=split,
            start_s=start_s if alone else start_s + inside_s,
            duration_s=number_field(placed.get("duration"), "duration", where),
            channel=channel_field(cut.get("channel"), where),
            recording=text_field(cut["recording"].get("id"), "id of the recording", where),
        )


def _entries(path: Path, preparation: Preparation) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and content of every entry in a manifest; broken entries become problems."""
    with preparation.reporting():
        for where, entry in _lines(path, preparation) if ".jsonl" in path.suffixes else _list(path):
            if isinstance(entry, dict):
                yield where, entry
            else:
                preparation.problem(f"{where}: expected an object of lhotse, found {str(entry)[:60]!r}")


def _lines(path: Path, preparation: Preparation) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(manifest_lines(path), start=1):
        with preparation.reporting():
            if line.strip():
                where = f"{path}:{number}"
                yield where, parse_json(line, where, "a lhotse manifest")


def _list(path: Path) -> Iterator[tuple[str, Any]]:
    text = read_text(path)
    content = (
        _yaml(text, path) if ".yaml" in path.suffixes else parse_json(text, str(path), "a lhotse manifest")
    )
    if not isinstance(content, list):
        raise UserError(f"{path}: expected a lhotse manifest, found {str(content)[:60]!r}")
    for number, entry in enumerate(content, start=1):
        yield f"{path}: entry {number}", entry


def _yaml(text: str, path: Path) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"{path}: expected a lhotse manifest in YAML, found another text ({reason})"
        ) from None


def _path(written: str, manifest: Path, preparation: Preparation) -> str:
    """Resolve a path against the current folder, as lhotse does, or else against the manifest's folder."""
    beside = str(manifest.parent / written)
    if os.path.exists(written):
        return written
    if not os.path.exists(beside):
        preparation.watch([written])  # the file may appear later in the current folder
    return beside


def _split(stem: str) -> str:
    """Return the split in a file name: dev-clean for `x_cuts_dev-clean` and `dev-clean_recordings`."""
    after = re.search(r"(?:cuts|recordings)[._](.+)$", stem)
    return after[1] if after else re.sub(r"[._]?(cuts|recordings)$", "", stem)
