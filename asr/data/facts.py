"""Check audio files: length, sample rate and channels as in the header, and the samples behind it."""

from pathlib import Path
from typing import Literal

from asr.data.audio_file import Undecodable, check_rate, checked_samples, open_audio
from asr.errors import UserError
from asr.files import require_file

BLOCK_SAMPLES = 1 << 20  # decoded at a time, over all channels: memory doesn't grow with the length
LARGEST_OGG_PAGE = 65_307  # bytes
END_OF_OGG = 4  # flag of a stream's last page


def header_facts(path: str | Path) -> tuple[int, int, int]:
    """Return (samples per channel, sample rate in Hz, channels) from an audio file's header.

    Raises:
        UserError: the file is missing, empty, no regular file, or neither SPHERE nor readable by libsndfile;
            its sample rate is absurd; or it is truncated, as far as `check_complete` can tell.
    """
    if not require_file(path, "an audio file", "missing_audio"):
        raise UserError(f"{path}: expected audio, found an empty file", "truncated_audio")
    try:
        with open_audio(path, ffmpeg=False) as file:
            assert file.samples is not None
            facts = file.samples, file.rate, file.channels
    except Undecodable as error:
        raise UserError(f"{path}: expected an audio file, found one that can't be read ({error})") from None
    check_rate(file.rate, path)
    if file.samples <= 0:
        raise UserError(f"{path}: expected audio, found no samples", "truncated_audio")
    check_complete(path)
    return facts


def audio_facts(path: str | Path) -> tuple[int, int, int]:
    """Return what `header_facts` does, after decoding the whole file.

    Raises:
        UserError: as in `header_facts`; or the samples can't be decoded, are not finite, or are not as many
            as the header states.
    """
    samples, rate, channels = facts = header_facts(path)
    found = 0
    try:
        with open_audio(path, ffmpeg=False) as file:
            for block in file.blocks(BLOCK_SAMPLES // channels):
                checked_samples(block, str(path), found)
                found += len(block)
    except Undecodable as error:
        raise UserError(f"{path}: damaged after {found / rate:.1f} s ({error})") from None
    if found != samples:
        raise UserError(
            f"{path}: expected {samples} samples, as its header says, found {found} (a truncated file?)",
            "truncated_audio",
        )
    return facts


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
    """Raise a `UserError` if a file is shorter than its container states, or an Ogg stream has no end.

    Checks wav, RF64, AIFF, AU, Wave64 and Ogg, with any suffix, because libsndfile doesn't. Other containers
    don't state their length, or decoding shows the loss (FLAC, MP3); SPHERE is checked on opening.
    """
    size = Path(path).stat().st_size
    with open(path, "rb") as file:
        head = file.read(32)
        file.seek(max(0, size - LARGEST_OGG_PAGE))
        tail = file.read() if head[:4] == b"OggS" else b""
    stated = stated_bytes(head)
    if size + 1 < stated:  # a padding byte may be missing
        raise UserError(
            f"{path}: expected {stated} bytes, as its header says, found {size} (a truncated file?)",
            "truncated_audio",
        )
    last_page = tail.rpartition(b"OggS")[2]
    if tail and not (len(last_page) > 1 and last_page[1] & END_OF_OGG):
        raise UserError(
            f"{path}: expected the end of an Ogg stream, found none (a truncated file?)", "truncated_audio"
        )


def stated_bytes(head: bytes) -> int:
    """Return the length of a file that its first 32 bytes state; 0 if they state none, as in a stream."""
    order: Literal["little", "big"]
    # Programs that write to a pipe can't fill in the length: they state 0, or the largest number of 31 or 32
    # bits less a header.
    match head[:4], head[8:12]:
        case b"RIFF", b"WAVE":
            before, place, order, unknown = 8, slice(4, 8), "little", 0x7FFFF000
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
