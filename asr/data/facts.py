"""Checks audio files: length, sample rate and channels, as stated in the header and by decoding."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from asr.console import counted
from asr.data.audio_file import (
    AUDIO_SUFFIXES,
    UNKNOWN,
    AudioFile,
    Undecodable,
    check_rate,
    checked_samples,
    is_silent,
    open_audio,
)
from asr.data.containers import OGG, ogg_pages
from asr.errors import UserError
from asr.files import require_file

HEADER = 4096  # bytes, at most
RIFF_START = 8  # bytes at the start of a wav file that its stated size doesn't count
BLOCK_SAMPLES = 1 << 20  # decoded at a time, over all channels, so that memory doesn't grow with the length
TEXT = bytes({*range(0x20, 0x100), *b"\t\n\r\f"})  # bytes of text in any encoding that extends ASCII
TRIED = 10  # a suffix isn't tried further after this many files without sound: each takes up to 0.4 s


def recordings_among(paths: Iterable[str]) -> Iterator[str]:
    """Yield the recordings: files with a usual audio suffix, and others that contain sound."""
    without_sound: Counter[str] = Counter()
    for path in paths:
        suffix = Path(path).suffix.lower()
        if suffix in AUDIO_SUFFIXES:
            yield path
        elif without_sound[suffix] < TRIED and not _is_text(path):
            if _has_sound(path):
                yield path
            else:
                without_sound[suffix] += 1


def _is_text(path: str) -> bool:
    """Return whether a file begins with text, is empty, or isn't a regular file."""
    if not Path(path).is_file():
        return True
    with open(path, "rb") as file:
        return not file.read(1000).translate(None, TEXT)


def _has_sound(path: str) -> bool:
    try:
        open_audio(path).close()
    except Undecodable:
        return False
    except UserError:  # damaged SPHERE
        return True
    return True


def header_facts(path: str | Path) -> tuple[int, int, int]:
    """Return (samples per channel, sample rate in Hz, channels) of an audio file.

    They come from the header. If it doesn't state the length, the file is decoded.

    Raises:
        UserError: the file is missing, empty, not a regular file, or not readable audio; its sample rate is
            absurd; or it is truncated, as far as `check_complete` can tell.
    """
    return _facts(path, decode=False)


def audio_facts(path: str | Path) -> tuple[int, int, int]:
    """Like `header_facts`, after decoding the whole file.

    Raises:
        UserError: as in `header_facts`; or the samples can't be decoded, aren't finite, or differ in number
            from the header.
    """
    return _facts(path, decode=True)


def speech_facts(path: str | Path) -> tuple[int, int, int]:
    """Like `audio_facts`, for a recording of speech.

    Raises:
        UserError: as in `audio_facts`; or all samples are below −80 dB of full scale.
    """
    return _facts(path, decode=True, speech=True)


def _facts(path: str | Path, decode: bool, speech: bool = False) -> tuple[int, int, int]:
    if not require_file(path, "an audio file", "missing_audio"):
        raise UserError(f"{path}: expected audio, found an empty file", "truncated_audio")
    try:
        with open_audio(path) as file:
            check_rate(file.rate, path)
            samples = file.samples
            counted = samples or 0
            if counted or samples is None:
                check_complete(path)
            if samples is None or (counted and decode):
                counted = _decoded(file, path, speech)
            if not (counted or samples):
                raise UserError(f"{path}: expected audio, found no samples", "truncated_audio")
    except Undecodable as error:
        raise UserError(f"{path}: expected an audio file, found one that can't be read ({error})") from None
    if samples is not None and counted != samples:
        raise UserError(
            f"{path}: expected {samples} samples, as its header says, found {counted} (a truncated file?)",
            "truncated_audio",
        )
    return counted, file.rate, file.channels


def _decoded(file: AudioFile, path: str | Path, speech: bool = False) -> int:
    """Return the number of samples per channel after decoding a file; speech mustn't be silent."""
    samples, silent = 0, speech
    try:
        for block in file.blocks(max(1, BLOCK_SAMPLES // max(1, file.channels))):
            checked_samples(block, str(path), samples)
            samples += len(block)
            silent = silent and is_silent(block)
    except Undecodable as error:
        raise UserError(f"{path}: damaged after {samples / file.rate:.1f} s ({error})") from None
    if samples and silent:
        raise UserError(f"{path}: expected speech, found silence: no sample reaches −80 dB of full scale")
    return samples


def player_times(path: str | Path) -> Callable[[float, bool], float]:
    """Return a function that converts times counted in a file's samples to times in a player.

    They differ after gaps: Whisper and other programs that decode with FFmpeg count samples only. The
    function's second argument tells whether the time is the end of a segment, which stays before a gap.
    """
    try:
        with open_audio(path) as file:
            if file.samples is None:  # a container that may have gaps
                _decoded(file, path)
    except Undecodable as error:
        raise UserError(f"{path}: expected an audio file, found one that can't be read ({error})") from None

    def in_player(time_s: float, is_end: bool) -> float:
        for first, samples in file.gaps:
            first_s = first / file.rate
            time_s += samples / file.rate if time_s > first_s or (time_s == first_s and not is_end) else 0.0
        return time_s

    return in_player


def samples_as_expected(
    path: str | Path, facts: tuple[int, int, int], sample_rate: int, channels: int = 1
) -> int:
    """Return the samples per channel from a file's facts; raise UserError for another rate or channels."""
    samples, *found = facts
    if found != [sample_rate, channels]:
        raise UserError(
            f"{path}: expected {sample_rate} Hz and {counted(channels, 'channel')}, found {found[0]} Hz and "
            f"{found[1]}",
            "damaged_audio",
        )
    return samples


def check_complete(path: str | Path) -> None:
    """Raise a `UserError` if a file is shorter than its container states.

    Checks wav, RF64, AIFF, AU, Wave64 and the last page of Ogg, with any suffix, because libsndfile doesn't.
    An Ogg stream without an end mark is accepted, because it may have been recorded from a network. Other
    containers don't state their length, or decoding shows the loss (FLAC, MP3); SPHERE is checked on opening.
    """
    size = Path(path).stat().st_size
    with open(path, "rb") as file:
        head = file.read(32)
        what, stated, found = "", stated_bytes(head), size
        if head[:4] == b"RIFF" and stated - RIFF_START == size:  # some recorders count the start, too
            stated = size
        if head[:4] == OGG:
            for page in ogg_pages(file, size):
                what, stated, found = " in its last page", page.stated, page.found
    if found + (not what) < stated:  # except in Ogg, a padding byte may be missing
        raise UserError(
            f"{path}: expected {stated} bytes{what}, as its header says, found {found} (a truncated file?)",
            "truncated_audio",
        )


def stated_bytes(head: bytes) -> int:
    """Return the length of a file stated in its first 32 bytes; 0 if it isn't stated, as in a stream."""
    order: Literal["little", "big"]
    match head[:4], head[8:12]:
        case b"RIFF", b"WAVE":
            before, place, order = RIFF_START, slice(4, 8), "little"
        case b"RF64", b"WAVE":
            before, place, order = 8, slice(20, 28), "little"
        case b"FORM", b"AIFF" | b"AIFC":
            before, place, order = 8, slice(4, 8), "big"
        case b".snd", _:
            before, place, order = int.from_bytes(head[4:8], "big"), slice(8, 12), "big"
        case b"riff", _:  # Wave64, whose length includes its name and itself
            before, place, order = 0, slice(16, 24), "little"
        case _:
            return 0
    stated = int.from_bytes(field := head[place], order)
    # Programs that write to a pipe don't know the length: they state 0, or the largest number of 31, 32 or
    # more bits, give or take a header.
    at_limit = min(abs(stated - 2**31), 2**32 - stated) <= HEADER if len(field) == 4 else stated >= UNKNOWN
    return before + stated if stated and not at_limit else 0
