"""Check audio files: length, sample rate and channels, as the header states them and by decoding."""

from pathlib import Path
from typing import Literal

from asr.data.audio_file import AudioFile, Undecodable, check_rate, checked_samples, open_audio
from asr.data.containers import OGG, ogg_pages
from asr.errors import UserError
from asr.files import require_file

RIFF_START = 8  # bytes before those that a wav file's size counts
BLOCK_SAMPLES = 1 << 20  # decoded at a time, over all channels: memory doesn't grow with the length


def header_facts(path: str | Path) -> tuple[int, int, int]:
    """Return (samples per channel, sample rate in Hz, channels) of an audio file.

    They come from its header. If that doesn't state the length, the file is decoded.

    Raises:
        UserError: the file is missing, empty, no regular file, or no audio that can be read; its sample rate
            is absurd; or it is truncated, as far as `check_complete` can tell.
    """
    return _facts(path, decode=False)


def audio_facts(path: str | Path) -> tuple[int, int, int]:
    """Return what `header_facts` does, after decoding the whole file.

    Raises:
        UserError: as in `header_facts`; or the samples can't be decoded, are not finite, or are not as many
            as the header states.
    """
    return _facts(path, decode=True)


def _facts(path: str | Path, decode: bool) -> tuple[int, int, int]:
    if not require_file(path, "an audio file", "missing_audio"):
        raise UserError(f"{path}: expected audio, found an empty file", "truncated_audio")
    try:
        with open_audio(path) as file:
            check_rate(file.rate, path)
            samples = file.samples
            found = samples or 0
            if found or samples is None:
                check_complete(path)
            if samples is None or (found and decode):
                found = _decoded(file, path)
            if not (found or samples):
                raise UserError(f"{path}: expected audio, found no samples", "truncated_audio")
    except Undecodable as error:
        raise UserError(f"{path}: expected an audio file, found one that can't be read ({error})") from None
    if samples is not None and found != samples:
        raise UserError(
            f"{path}: expected {samples} samples, as its header says, found {found} (a truncated file?)",
            "truncated_audio",
        )
    return found, file.rate, file.channels


def _decoded(file: AudioFile, path: str | Path) -> int:
    """Return the number of samples per channel after decoding a file."""
    found = 0
    try:
        for block in file.blocks(max(1, BLOCK_SAMPLES // max(1, file.channels))):
            checked_samples(block, str(path), found)
            found += len(block)
    except Undecodable as error:
        raise UserError(f"{path}: damaged after {found / file.rate:.1f} s ({error})") from None
    return found


def samples_as_expected(
    path: str | Path, facts: tuple[int, int, int], sample_rate: int, channels: int = 1
) -> int:
    """Return the samples per channel from a file's facts; raise UserError unless rate and channels fit."""
    samples, *found = facts
    if found != [sample_rate, channels]:
        wanted = "one channel" if channels == 1 else f"{channels} channels"
        raise UserError(
            f"{path}: expected {sample_rate} Hz and {wanted}, found {found[0]} Hz and {found[1]}",
            "damaged_audio",
        )
    return samples


def check_complete(path: str | Path) -> None:
    """Raise a `UserError` if a file is shorter than its container states.

    Checks wav, RF64, AIFF, AU, Wave64 and the last page of Ogg, with any suffix, because libsndfile doesn't.
    An Ogg stream without a mark of its end may have been recorded from a network, so it is accepted. Other
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
    if found + (not what) < stated:  # a padding byte of others may be missing
        raise UserError(
            f"{path}: expected {stated} bytes{what}, as its header says, found {found} (a truncated file?)",
            "truncated_audio",
        )


def stated_bytes(head: bytes) -> int:
    """Return the length of a file that its first 32 bytes state; 0 if they state none, as in a stream."""
    order: Literal["little", "big"]
    # Programs that write to a pipe can't fill in the length: they state 0, or the largest number of 31 or 32
    # bits less a header.
    match head[:4], head[8:12]:
        case b"RIFF", b"WAVE":
            before, place, order, unknown = RIFF_START, slice(4, 8), "little", 0x7FFFF000
        case b"RF64", b"WAVE":
            before, place, order, unknown = 8, slice(20, 28), "little", 1 << 62
        case b"FORM", b"AIFF" | b"AIFC":
            before, place, order, unknown = 8, slice(4, 8), "big", 0x7FFFF000
        case b".snd", _:
            before = int.from_bytes(head[4:8], "big")
            place, order, unknown = slice(8, 12), "big", 0x7FFFF000
        case b"riff", _:  # Wave64, whose length includes its name and itself
            before, place, order, unknown = 0, slice(16, 24), "little", 1 << 62
        case _:
            return 0
    stated = int.from_bytes(head[place], order)
    return before + stated if 0 < stated < unknown else 0
