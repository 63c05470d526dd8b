"""Manifests: write lhotse cuts to `<split>.cuts.jsonl.gz`, read and check them."""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.data.facts import check_rate
from asr.errors import UserError, in_words
from asr.files import atomic_binary, parse_json, require_file
from asr.text.files import CONTROL

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import CutSet, MonoCut, Recording

# A cut may extend this far beyond its recording, because manifests contain rounded durations.
TOLERANCE_S = 1e-3
# Keys by which lhotse recognises audio, features, arrays and images. To load these it may run a command,
# fetch an address or unpickle a file.
STORED = {"sources", "storage_type", "storage_path"}
DEEPEST = 20  # levels of custom fields
ROUNDING_S = 0.025  # lhotse's tolerance for the length of a recording


def save_cuts(cuts: "Iterable[MonoCut]", path: str | Path) -> None:
    """Write a manifest as `write_cuts` does, so that its folder can be moved with the audio files inside."""
    write_cuts(cuts, path, Path(path).parent)


def write_cuts(cuts: "Iterable[MonoCut]", path: str | Path, base: Path | None) -> None:
    """Write one cut per line, gzipped, atomically; equal cuts give equal bytes.

    Args:
        cuts: cuts of plain audio files.
        path: manifest.
        base: audio files in this folder get paths relative to it; None: all paths are absolute.
    """
    with atomic_binary(path, zipped=True) as packed:
        shared: tuple[Recording | None, dict[str, Any]] = None, {}  # neighbours often share a recording
        for cut in cuts:
            if cut.recording is not shared[0]:
                shared = cut.recording, _recording_entry(cut.recording, base)
            entry = {**_cut_entry(cut), **shared[1], "type": "MonoCut"}
            packed.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")


def load_cuts(path: str | Path, require_text: bool = True) -> "CutSet":
    """Read and check a manifest; audio paths come back absolute.

    Every entry must be a `MonoCut` with a unique id, a positive duration within its recording, an
    existing audio file, and exactly one supervision, with a transcript unless `require_text` is false.
    Nothing in a manifest is run, downloaded or unpickled: entries that ask for it are refused.

    Raises:
        UserError: the manifest is missing, broken or empty, or an entry is not as required; the message
            names the manifest and the utterance.
    """
    from lhotse import CutSet, MonoCut, Recording

    path = Path(path)
    folder = path.parent.absolute()
    cuts: list[MonoCut] = []
    ids: set[str] = set()
    files: set[str] = set()
    last: tuple[Any, Recording | None] = None, None  # neighbours that share a recording share the object
    for number, entry in enumerate(manifest_entries(path), start=1):
        where = f"{path}: utterance {entry['id']!r}"
        if entry["id"] in ids:
            raise UserError(f"{where}: expected ids to be distinct, found this one again in line {number}")
        ids.add(entry["id"])
        try:
            described = entry.pop("recording", None)
            if described != last[0]:
                check_audio(described, where)
            _check_fields(entry, where)
            cut = MonoCut.from_dict(entry)
            if described != last[0]:
                absolute = _with_sources(described, partial(os.path.join, folder)) if described else None
                last = described, Recording.from_dict(absolute) if absolute else None
            cut.recording = last[1]
        except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
            raise UserError(f"{where}: not a lhotse cut ({in_words(error)})") from None
        check_cut(cut, where, files, require_text)
        cuts.append(cut)
    if not cuts:
        raise UserError(f"{path}: expected at least one utterance, found an empty manifest")
    return CutSet.from_cuts(cuts)


def check_audio(recording: Any, where: str) -> None:
    """Raise a `UserError` unless a recording's entry in a manifest describes unmodified audio in files.

    lhotse would run the commands, fetch the addresses and unpickle the arrays of other entries.
    """
    if recording is None:
        raise UserError(f"{where}: expected a recording, found none")
    sources = recording.get("sources") if isinstance(recording, dict) else None
    if not isinstance(sources, list) or not sources or not all(isinstance(x, dict) for x in sources):
        raise UserError(f"{where}: expected a recording with its audio files, found {str(recording)[:60]!r}")
    for source in sources:
        if source.get("type") != "file" or not isinstance(source.get("source"), str):
            raise UserError(
                f"{where}: expected audio in a file, found a source of type {source.get('type')!r}: "
                f"{str(source.get('source'))[:60]!r} (write the audio to a file first)"
            )
    others = {"transforms": recording.get("transforms"), "video": any(x.get("video") for x in sources)}
    if found := [name for name, value in others.items() if value]:
        raise UserError(f"{where}: expected unmodified audio in a file, found {found[0]}")


def _check_fields(entry: dict[str, Any], where: str) -> None:
    """Raise a `UserError` if a cut has features, or custom fields with audio, arrays or images."""
    if entry.get("features") is not None:
        raise UserError(
            f"{where}: expected no features, because they are computed from the audio, found some "
            "(asr prepare lhotse leaves them out)"
        )
    waiting: list[tuple[int, Any]] = [(0, entry)]
    while waiting:
        depth, value = waiting.pop()
        if not isinstance(value, dict | list):
            continue
        if depth > DEEPEST:
            raise UserError(f"{where}: expected at most {DEEPEST} levels of fields, found more")
        if isinstance(value, dict) and not STORED.isdisjoint(value):
            found = ", ".join(sorted(STORED & value.keys()))
            raise UserError(
                f"{where}: expected custom fields of text and numbers, found stored data ({found}) "
                "(asr prepare lhotse leaves them out)"
            )
        waiting += [(depth + 1, inner) for inner in (value.values() if isinstance(value, dict) else value)]


def check_cut(cut: "MonoCut", where: str, known_files: set[str], require_text: bool = True) -> None:
    """Raise a `UserError` that begins with `where` if the cut violates a requirement of `load_cuts`.

    Files in `known_files` are assumed to exist; files found on disk are added to it.
    """
    # `not x >= 0` instead of `x < 0`, so that NaN fails the check.
    if not _real(cut.start) or not cut.start >= 0:
        raise UserError(f"{where}: expected a start of 0 s or later, found {cut.start} s", "times")
    if not _real(cut.duration) or not cut.duration > 0:
        raise UserError(f"{where}: expected a duration above 0 s, found {cut.duration} s", "times")
    if type(cut.channel) is not int or cut.channel < 0:
        raise UserError(f"{where}: expected the number of a channel, found {cut.channel!r}")
    if cut.recording is None:
        raise UserError(f"{where}: expected a recording, found none")
    _check_recording(cut.recording, where)
    if not cut.start + cut.duration <= cut.recording.duration + TOLERANCE_S:
        raise UserError(
            f"{where}: expected the cut to lie within its recording of {cut.recording.duration} s, "
            f"found {cut.start} s + {cut.duration} s",
            "times",
        )
    for source in cut.recording.sources:
        if source.source not in known_files:
            try:
                size = require_file(source.source, "an audio file", "missing_audio")
            except UserError as error:
                raise UserError(f"{where}: {error}{_origin(source.source)}", error.kind) from None
            if size == 0:
                raise UserError(
                    f"{where}: expected audio, found an empty file: {source.source}", "truncated_audio"
                )
            known_files.add(source.source)
    if len(cut.supervisions) != 1:
        raise UserError(f"{where}: expected exactly one supervision, found {len(cut.supervisions)}")
    supervision = cut.supervisions[0]
    for name, value in [("id", cut.id), ("transcript", supervision.text), ("speaker", supervision.speaker)]:
        if value is None and name != "id":
            continue
        if not isinstance(value, str):
            raise UserError(f"{where}: expected text as {name}, found {str(value)[:60]!r}")
        if CONTROL.search(value):
            raise UserError(f"{where}: expected no control characters in the {name}, found {value[:60]!r}")
    if require_text and not (supervision.text or "").strip():
        raise UserError(f"{where}: expected a transcript, found none", "missing_text")


def _check_recording(recording: "Recording", where: str) -> None:
    """Raise a `UserError` unless rate and length are numbers that fit."""
    rate, samples, seconds = recording.sampling_rate, recording.num_samples, recording.duration
    if type(rate) is not int:
        raise UserError(f"{where}: expected a sample rate in Hz, a whole number, found {rate!r}")
    check_rate(rate, where)
    if type(samples) is not int or not _real(seconds) or not abs(samples / rate - seconds) < ROUNDING_S:
        raise UserError(
            f"{where}: expected a recording as long as its samples, found {seconds!r} s, {samples!r} samples"
        )
    if not isinstance(recording.id, str) or CONTROL.search(recording.id):
        raise UserError(f"{where}: expected a recording's id of plain text, found {str(recording.id)[:60]!r}")


def _origin(file: str) -> str:
    """Return how to make an audio file in a prepared folder again; empty for other files."""
    for folder in Path(file).parents:
        if (folder / "preparation.json").is_file():
            return f" (made by the command in {folder / 'README.md'}; run it again)"
    return ""


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _recording_entry(recording: "Recording | None", base: Path | None) -> dict[str, Any]:
    """The entry `recording` of a manifest line: `recording.to_dict()` with paths relative to `base`.

    Building the dictionary directly takes a tenth of the time of `to_dict`.
    """
    if recording is None:
        return {}
    entry = {name: value for name, value in vars(recording).items() if value is not None}
    entry["sources"] = [
        {"type": s.type, "channels": s.channels, "source": s.source} for s in recording.sources
    ]

    def relative(source: str) -> str:
        path = Path(source).absolute()
        inside = base is not None and path.is_relative_to(base.absolute())
        return str(path.relative_to(base.absolute()) if base and inside else path)

    return {"recording": _with_sources(entry, relative)}


def _cut_entry(cut: "MonoCut") -> dict[str, Any]:
    """`cut.to_dict()` without its recording; built directly for plain cuts, in a tenth of the time."""
    from lhotse.utils import fastcopy

    plain = cut.features is None and cut.custom is None
    if not plain or any(s.alignment is not None or s.custom is not None for s in cut.supervisions):
        entry = fastcopy(cut, recording=None).to_dict()
        del entry["type"]
        return entry
    supervisions = [
        {name: value for name, value in vars(supervision).items() if value is not None}
        for supervision in cut.supervisions
    ]
    entry = {"id": cut.id, "start": cut.start, "duration": cut.duration, "channel": cut.channel}
    return {**entry, "supervisions": supervisions}


def manifest_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a manifest, decompressed if its name ends in `.gz`.

    Raises:
        UserError: the manifest is missing, no regular file, broken, or not UTF-8.
    """
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        if path.exists():
            require_file(path, "a manifest")
        with opener(path, "rt", encoding="utf-8") as stream:
            yield from stream
    except FileNotFoundError:
        others = sorted(other.name.partition(".")[0] for other in path.parent.glob("*.cuts.jsonl.gz"))
        hint = f"the splits there: {', '.join(others)}" if others else "create it with asr prepare"
        raise UserError(f"{path}: expected a manifest, found no such file ({hint})") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: expected a whole gzip file, found a broken one ({error})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: expected UTF-8 text, found other bytes") from None
    except OSError as error:
        raise UserError(f"{path}: the manifest can't be read ({error.strerror})") from None


def manifest_entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the cuts of a manifest as plain data; only their ids are checked. Errors as in `load_cuts`."""
    for number, line in enumerate(manifest_lines(path), start=1):
        yield _parse(line, f"{path}:{number}")


def _parse(line: str, where: str) -> dict[str, Any]:
    entry = parse_json(line, where, "a cut")
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise UserError(f"{where}: expected a cut with an id, found {line[:40]!r}")
    if entry.pop("type", "MonoCut") != "MonoCut":
        raise UserError(f"{where}: utterance {entry['id']!r}: expected a MonoCut, found another type of cut")
    return entry


def _with_sources(recording: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the recording's dictionary with `change` applied to its audio files."""
    sources = [{**source, "source": change(source["source"])} for source in recording["sources"]]
    return {**recording, "sources": sources}
