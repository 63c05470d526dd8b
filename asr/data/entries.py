"""Checks of a manifest's entries: lhotse's cuts of plain audio files, no commands or downloads."""

import os
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.data.audio_file import SAMPLE_RATES, check_rate
from asr.errors import UserError, in_words
from asr.files import require_file
from asr.text.files import CONTROL

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut, Recording

# A cut may extend this far beyond its recording, because manifests contain rounded durations.
TOLERANCE_S = 1e-3
# Keys by which lhotse recognises audio, features, arrays and images. To load these it may run a command,
# fetch an address or unpickle a file.
STORED = {"sources", "storage_type", "storage_path"}
DEEPEST = 20  # levels of custom fields
ROUNDING_S = 0.025  # lhotse's tolerance for the length of a recording
MOST_KNOWN = 200_000  # audio files to remember as existing
# Fields of ordinary entries, which `ordinary` checks itself.
CUT = {"id", "start", "duration", "channel", "supervisions", "recording"}
SUPERVISION = {"id", "recording_id", "start", "duration"}
NAMES = ("id", "recording_id", "language", "speaker", "gender")
OPTIONAL = {"channel", "text", *NAMES}
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
        where: manifest and utterance.
        folder: folder to which paths of audio files are relative.
        known_files: audio files that exist; those found are added.
        require_text: refuse an utterance without a transcript.
    """
    try:
        check_audio(entry.get("recording"), where)
        check_fields({key: value for key, value in entry.items() if key != "recording"}, where)
        cut = parse_cut(entry, folder)
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise UserError(f"{where}: not a lhotse cut ({in_words(error)})") from None
    check_cut(cut, where, known_files, require_text)


def ordinary(entry: dict[str, Any], folder: Path, known_files: set[str]) -> bool:
    """Return whether an entry has only the fields of speech in files, with values that pass `check_entry`.

    This takes a tenth of the time of `check_entry`, which decides about all other entries. Audio files found
    are added to `known_files` under the names that the manifest gives them.
    """
    try:
        [supervision] = entry["supervisions"]
        recording = entry["recording"]
        [source] = recording["sources"]
        start_s, duration_s, channel = entry["start"], entry["duration"], entry["channel"]
        samples, rate, length_s = recording["num_samples"], recording["sampling_rate"], recording["duration"]
        text, name = supervision["text"], source["source"]
        texts = (entry["id"], recording["id"], name, text, *map(supervision.get, NAMES, repeat("")))
        if not (
            _usual_fields(tuple(entry), tuple(supervision), tuple(recording), tuple(source))
            and source["type"] == "file"
            and type(recording["id"]) is str
            and type(start_s) in NUMBERS
            and type(duration_s) in NUMBERS
            and type(length_s) in NUMBERS
            and type(supervision["start"]) in NUMBERS
            and type(supervision["duration"]) in NUMBERS
            and type(channel) is type(supervision.get("channel", 0)) is type(samples) is type(rate) is int
            and _channels(source["channels"])
            and _channels(recording.get("channel_ids", []))
            and "".join(texts).isprintable()
            and text.strip()
            and start_s >= 0
            and duration_s > 0
            and channel >= 0
            and SAMPLE_RATES[0] <= rate <= SAMPLE_RATES[1]
            and abs(samples / rate - length_s) < ROUNDING_S
            and start_s + duration_s <= length_s + TOLERANCE_S
        ):
            return False
        if name not in known_files:
            if not require_file(os.path.join(folder, name), "an audio file"):
                return False
            if len(known_files) >= MOST_KNOWN:
                known_files.clear()
            known_files.add(name)
        return True
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, UserError):
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
        if isinstance(value, dict) and not STORED.isdisjoint(value):
            found = ", ".join(sorted(STORED & value.keys()))
            raise UserError(
                f"{where}: expected custom fields of text and numbers, found stored data ({found}) "
                "(asr prepare lhotse leaves them out)"
            )
        waiting += [(depth + 1, inner) for inner in (value.values() if isinstance(value, dict) else value)]


def check_cut(cut: "MonoCut", where: str, known_files: set[str], require_text: bool = True) -> None:
    """Raise a `UserError` that begins with `where` if the cut violates a requirement of `read_cuts`.

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


def parse_cut(
    entry: dict[str, Any], folder: Path, known: "tuple[Any, Recording | None]" = (None, None)
) -> "MonoCut":
    """Return the cut of a checked entry.

    Args:
        entry: line of a manifest.
        folder: folder to which paths of audio files are relative.
        known: a recording's entry and the object to use for it.

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
