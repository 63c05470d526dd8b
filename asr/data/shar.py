"""Folders in Lhotse Shar format: random access to audio in tar archives.

A shard is a manifest `cuts.000000.jsonl.gz` and an archive `recording.000000.tar`, which contains, for every
cut in the manifest's order, a file with the audio and one with lhotse's description of it (JSON). lhotse
reads both sequentially. Here, the first pass notes where each file lies, so that any utterance can be loaded:
its audio source is named `recording.000000.tar#<offset>+<bytes>`. Features and other stored data, in further
archives, are ignored.
"""

import io
import itertools
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.data.lines import DEEPEST, is_stored, manifest_lines, parse_line, shards
from asr.errors import UserError, in_words
from asr.files import parse_json, require_file

MEMBER = re.compile(r"(.+\.tar)#(\d+)\+(\d+)")
LARGEST_DESCRIPTION = 1 << 20  # bytes
WITHOUT_PLACEHOLDERS = (
    "lhotse.CutSet.from_shar(in_dir='{folder}').filter(lambda cut: cut.has_recording)"
    # lhotse notes the shard that a cut comes from as a `Path`, which it can't serialise.
    ".map(lambda cut: cut.with_custom('shard_origin', ''))"
    ".to_shar('{folder}-audible', {{'recording': 'flac'}})"
)


def archive(manifest: Path) -> Path:
    """Return the archive of a shard's audio."""
    return manifest.with_name(re.sub(r"^cuts(.*?)\.jsonl(\.gz)?$", r"recording\1.tar", manifest.name))


def shar_entries(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each cut of a folder twice: as JSON with the place of its audio, and as plain data.

    In the plain data, the audio source is the whole archive, so that `check_entry` finds the file.

    Raises:
        UserError: an archive is missing, damaged or compressed, differs from its manifest, lacks an
            utterance's audio, or an entry describes audio elsewhere.
    """
    for manifest in shards(folder):
        path = archive(manifest)
        require_file(path, "the archive of a shard (uncompressed, because it is not read in order)")
        entries = (parse_line(x, f"{manifest}:{i}") for i, x in enumerate(manifest_lines(manifest), start=1))
        for entry, audio in itertools.zip_longest(entries, _members(path)):
            if entry is None or audio is None:
                more = "cuts" if audio is None else "recordings"
                raise UserError(
                    f"{path}: expected a recording for each cut of {manifest.name}, found more {more}"
                )
            name, described, place = audio
            if name != entry["id"]:
                raise UserError(f"{path}: expected the audio of utterance {entry['id']!r}, found {name!r}")
            where = f"{path}: utterance {name!r}"
            if described is None:
                # The folder's name, not its path: three paths would make the message too long.
                advice = WITHOUT_PLACEHOLDERS.format(folder=folder.name)
                raise UserError(
                    f"{where}: expected its audio, found lhotse's placeholder for a missing recording; "
                    f"beside the folder, {advice} leaves such cuts out",
                    "missing_audio",
                )
            entry = {
                key: value if key == "recording" else _without_stored(value)
                for key, value in entry.items()
                if key != "features"
            }
            if not entry.get("custom"):
                entry.pop("custom", None)
            if entry.get("recording") is not None:
                _with_source(entry["recording"], "", f"{manifest}: utterance {name!r}")
            checked = {**entry, "recording": _with_source(described, path.name, where)}
            located = {**entry, "recording": _with_source(described, f"{path.name}#{place}", where)}
            yield json.dumps(located, ensure_ascii=False), checked


def _without_stored(value: Any, depth: int = 0) -> Any:
    """Return a field without descriptions of stored audio, features, arrays or images, at any depth."""
    if depth > DEEPEST or not isinstance(value, dict | list):  # `check_entry` refuses deeper fields
        return value
    if isinstance(value, list):
        return [_without_stored(inner, depth + 1) for inner in value if not is_stored(inner)]
    return {key: _without_stored(inner, depth + 1) for key, inner in value.items() if not is_stored(inner)}


def _with_source(recording: Any, source: str, where: str) -> dict[str, Any]:
    """Return the description of a recording, with a file in place of the placeholder for its audio.

    Raises:
        UserError: the description has no placeholder, but audio elsewhere, a command or an address.
    """
    sources = recording.get("sources") if isinstance(recording, dict) else None
    if not isinstance(sources, list) or len(sources) != 1 or not isinstance(sources[0], dict):
        raise UserError(f"{where}: expected a recording with one source, found {str(recording)[:60]!r}")
    if sources[0].get("type") != "shar":
        raise UserError(
            f"{where}: expected audio in the shard's archive, found a source of type "
            f"{sources[0].get('type')!r}: {str(sources[0].get('source'))[:60]!r}"
        )
    return {**recording, "sources": [{**sources[0], "type": "file", "source": source}]}


def _members(path: Path) -> Iterator[tuple[str, Any, str]]:
    """Yield the name of each utterance in an archive, the description of its audio, and its place.

    The description is None if the archive has lhotse's placeholder for a missing recording.
    """
    try:
        with tarfile.open(path, "r:") as files:
            while audio := files.next():
                described = files.next()
                files.members = []  # type: ignore[attr-defined]  # it would keep all
                name = audio.name.rpartition(".")[0]
                if described and (audio.name, described.name) == (f"{name}.nodata", f"{name}.nometa"):
                    yield name, None, ""
                    continue
                if described is None or described.name != f"{name}.json":
                    found = "none" if described is None else repr(described.name)
                    raise UserError(f"{path}: expected {name}.json after {audio.name!r}, found {found}")
                content = files.extractfile(described) if described.isreg() else None
                if content is None or not audio.isreg() or described.size > LARGEST_DESCRIPTION:
                    raise UserError(f"{path}: expected plain files, found others at {audio.name!r}")
                text = content.read()
                place = f"{audio.offset_data}+{audio.size}"
                yield name, parse_json(text, f"{path}: {described.name}", "a recording"), place
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(
            f"{path}: expected a whole tar archive, found a damaged one ({in_words(error)})"
        ) from None


def is_member(path: str) -> bool:
    """Return whether a path names a file in an archive."""
    return MEMBER.fullmatch(path) is not None


def read_member(path: str) -> io.BytesIO:
    """Return the content of a file in an archive.

    Raises:
        UserError: the archive is gone or has become shorter.
    """
    match = MEMBER.fullmatch(path)
    assert match is not None
    try:
        with open(match[1], "rb") as file:
            file.seek(int(match[2]))
            content = file.read(int(match[3]))
    except OSError as error:
        raise UserError(
            f"{match[1]}: expected a tar archive, found none that can be read ({error.strerror})"
        ) from None
    if len(content) < int(match[3]):
        raise UserError(f"{match[1]}: expected a whole tar archive, found it shorter than at the start")
    return io.BytesIO(content)
