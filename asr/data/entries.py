"""Checks a manifest's entries: lhotse cuts of plain audio files, without commands or downloads."""

import os
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.data.audio_file import check_rate
from asr.data.lines import DEEPEST, STORED, is_stored
from asr.errors import CONTROL, UserError, in_words
from asr.files import require_file

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut, Recording

# A cut may extend this far beyond its recording, because manifests contain rounded durations.
TOLERANCE_S = 1e-3
ROUNDING_S = 0.025  # lhotse's tolerance for the length of a recording
MOST_KNOWN = 200_000  # audio files remembered as existing; a file's utterances usually follow each other
# Fields of ordinary entries, for which `check_entry` doesn't need lhotse.
CUT = {"id", "start", "duration", "channel", "supervisions", "recording"}
SUPERVISION = {"id", "recording_id", "start", "duration"}
OPTIONAL = {"channel", "text", "language", "speaker", "gender"}
RECORDING = {"id", "sources", "sampling_rate", "num_samples", "duration"}
SOURCE = {"type", "channels", "source"}
NUMBERS = {int, float}
Names = tuple[str, ...]


def check_entry(
    entry: dict[str, Any], where: str, folder: Path, known_files: set[str], require_text: bool = True
) -> None:
    """Raise a `UserError` that begins with `where` unless `asr.data.manifest.read_cuts` takes the entry.

    Args:
        entry: line of a manifest, without its type.
        where: manifest and utterance, for messages.
        folder: folder to which paths of audio files are relative.
        known_files: existing audio files, named as in the manifest; further ones are added.
        require_text: whether to refuse an utterance without a transcript.
    """
    try:
        # lhotse checks unusual fields and types; building its objects takes ten times as long as this check.
        if not _is_ordinary(entry):
            check_audio(entry.get("recording"), where)
            check_fields({key: value for key, value in entry.items() if key != "recording"}, where)
            parse_cut(entry, folder)
        _check_times(entry, where)
        _check_files(entry["recording"]["sources"], where, folder, known_files)
        _check_text(entry, where, require_text)
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, OverflowError) as error:
        raise UserError(f"{where}: not a lhotse cut ({in_words(error)})") from None


def _is_ordinary(entry: dict[str, Any]) -> bool:
    """Return whether an entry has only the usual fields of speech in a file; values are checked elsewhere."""
    try:
        [supervision] = entry["supervisions"]
        recording = entry["recording"]
        [source] = recording["sources"]
        return (
            _usual_fields(tuple(entry), tuple(supervision), tuple(recording), tuple(source))
            and source["type"] == "file"
            and type(source["source"]) is str
            and _channels(source["channels"])
            and _channels(recording.get("channel_ids", []))
        )
    except (LookupError, TypeError, ValueError):
        return False


@lru_cache
def _usual_fields(cut: Names, supervision: Names, recording: Names, source: Names) -> bool:
    return (
        set(cut) == CUT
        and SUPERVISION <= set(supervision) <= SUPERVISION | OPTIONAL
        and RECORDING <= set(recording) <= RECORDING | {"channel_ids"}
        and set(source) == SOURCE
    )


def _channels(value: Any) -> bool:
    return type(value) is list and {*map(type, value)} <= {int}


def check_audio(recording: Any, where: str) -> None:
    """Raise a `UserError` unless a recording's entry in a manifest describes unmodified audio in files.

    lhotse would run commands, fetch addresses and unpickle arrays in other entries.
    """
    if recording is None:
        raise UserError(f"{where}: expected a recording, found none")
    sources = recording.get("sources") if isinstance(recording, dict) else None
    if not isinstance(sources, list) or not sources or {*map(type, sources)} != {dict}:
        raise UserError(f"{where}: expected a recording with its audio files, found {str(recording)[:60]!r}")
    modified = "transforms" if recording.get("transforms") else ""
    for source in sources:
        if source.get("type") != "file" or not isinstance(source.get("source"), str):
            raise UserError(
                f"{where}: expected audio in a file, found a source of type {source.get('type')!r}: "
                f"{str(source.get('source'))[:60]!r} (write the audio to a file first)"
            )
        if source.get("video"):
            modified = modified or "video"
    if modified:
        raise UserError(f"{where}: expected unmodified audio in a file, found {modified}")


def check_fields(entry: dict[str, Any], where: str) -> None:
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
        if is_stored(value):
            found = ", ".join(sorted(STORED & value.keys()))
            raise UserError(
                f"{where}: expected custom fields of text and numbers, found stored data ({found}) "
                "(asr prepare lhotse leaves them out)"
            )
        waiting += [(depth + 1, inner) for inner in (value.values() if isinstance(value, dict) else value)]


def _check_times(entry: dict[str, Any], where: str) -> None:
    """Raise a `UserError` unless times, channel, rate and length are valid and consistent numbers."""
    start_s, duration_s, channel, recording = (
        entry["start"],
        entry["duration"],
        entry["channel"],
        entry["recording"],
    )
    # `not x >= 0` instead of `x < 0`, so that NaN fails the check.
    if not _real(start_s) or not start_s >= 0:
        raise UserError(f"{where}: expected a start of 0 s or later, found {start_s} s", "times")
    if not _real(duration_s) or not duration_s > 0:
        raise UserError(f"{where}: expected a duration above 0 s, found {duration_s} s", "times")
    if type(channel) is not int or channel < 0:
        raise UserError(f"{where}: expected the number of a channel, found {channel!r}")
    rate, samples, length_s = recording["sampling_rate"], recording["num_samples"], recording["duration"]
    if type(rate) is not int:
        raise UserError(f"{where}: expected a sample rate in Hz, a whole number, found {rate!r}")
    check_rate(rate, where)
    if type(samples) is not int or not _real(length_s) or not abs(samples / rate - length_s) < ROUNDING_S:
        raise UserError(
            f"{where}: expected a recording as long as its samples, found {length_s!r} s, {samples!r} samples"
        )
    if not start_s + duration_s <= length_s + TOLERANCE_S:
        raise UserError(
            f"{where}: expected the cut to lie within its recording of {length_s} s, "
            f"found {start_s} s + {duration_s} s",
            "times",
        )


def _check_files(sources: list[dict[str, Any]], where: str, folder: Path, known_files: set[str]) -> None:
    """Raise a `UserError` unless the audio files exist and are not empty."""
    for source in sources:
        if (name := source["source"]) in known_files:
            continue
        path = os.path.join(folder, name)
        try:
            size = require_file(path, "an audio file", "missing_audio")
        except UserError as error:
            raise UserError(f"{where}: {error}{_origin(path)}", error.kind) from None
        if size == 0:
            raise UserError(f"{where}: expected audio, found an empty file: {path}", "truncated_audio")
        if len(known_files) >= MOST_KNOWN:
            known_files.clear()
        known_files.add(name)


def _check_text(entry: dict[str, Any], where: str, require_text: bool) -> None:
    """Raise a `UserError` unless there is one supervision, and ids, transcript and speaker are plain text."""
    recording, supervisions = entry["recording"]["id"], entry.get("supervisions", ())
    if not isinstance(recording, str) or _has_control(recording):
        raise UserError(f"{where}: expected a recording's id of plain text, found {str(recording)[:60]!r}")
    if len(supervisions) != 1:
        raise UserError(f"{where}: expected exactly one supervision, found {len(supervisions)}")
    text, speaker = supervisions[0].get("text"), supervisions[0].get("speaker")
    for name, value in ("id", entry["id"]), ("transcript", text), ("speaker", speaker):
        if value is None and name != "id":
            continue
        if not isinstance(value, str):
            raise UserError(f"{where}: expected text as {name}, found {str(value)[:60]!r}")
        if _has_control(value):
            raise UserError(f"{where}: expected no control characters in the {name}, found {value[:60]!r}")
    if require_text and not (text or "").strip():
        raise UserError(f"{where}: expected a transcript, found none", "missing_text")


def _has_control(text: str) -> bool:
    # Control characters aren't printable, and `isprintable` takes half as long as the search.
    return not text.isprintable() and CONTROL.search(text) is not None


def _origin(file: str) -> str:
    """Return a hint how to restore an audio file that a recipe has made; empty for other files."""
    for folder in Path(file).parents:
        if (folder / "preparation.json").is_file():
            return f" (made by the command in {folder / 'README.md'}; run it again)"
    return ""


def _real(value: Any) -> bool:
    return type(value) in NUMBERS or (isinstance(value, int | float) and not isinstance(value, bool))


def parse_cut(
    entry: dict[str, Any], folder: Path, known: "tuple[Any, Recording | None]" = (None, None)
) -> "MonoCut":
    """Return the cut of a checked entry.

    Args:
        entry: line of a manifest.
        folder: folder to which paths of audio files are relative.
        known: entry of a recording, and the lhotse object to reuse for it.

    Raises:
        LookupError, TypeError, ValueError, AttributeError, AssertionError: lhotse can't read the entry.
    """
    from lhotse import MonoCut, Recording

    described = entry["recording"]
    cut = MonoCut.from_dict({key: value for key, value in entry.items() if key != "recording"})
    absolute = with_sources(described, partial(os.path.join, folder))
    cut.recording = known[1] if described == known[0] else Recording.from_dict(absolute)
    return cut


def with_sources(recording: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return a recording's entry with `change` applied to its audio files."""
    sources = [{**source, "source": change(source["source"])} for source in recording["sources"]]
    return {**recording, "sources": sources}
