"""Audio files to transcribe, and the paths of their transcripts."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from asr.console import counted
from asr.errors import UserError
from asr.files import check_writable
from asr.transcription.options import SUFFIXES

log = logging.getLogger(__name__)

STANDARD_INPUT = "-"
OTHERS = (*SUFFIXES.values(), ".ctm", ".jsonl")  # suffixes of non-audio files beside recordings


class AudioFile(NamedTuple):
    """A file to transcribe.

    Attributes:
        path: path of the file; `-`: standard input.
        transcript: path of the transcript, unless it is written to standard output.
    """

    path: Path
    transcript: Path

    @property
    def is_input(self) -> bool:
        """Whether it is standard input."""
        return str(self.path) == STANDARD_INPUT

    @property
    def name(self) -> str:
        """The path as valid text: bytes that are not UTF-8 become escapes."""
        return str(self.path).encode(errors="backslashreplace").decode()


def audio_files(paths: Sequence[Path], output: str, form: str) -> list[AudioFile]:
    """Return the audio files among paths and in folders.

    Transcripts and hidden files are skipped. The output folder gets the same subfolders. The transcript of
    `x.wav` is `x.srt`, or `x.wav.srt` if `x.flac` is transcribed, too.

    Args:
        paths: files, folders, or `-`.
        output: folder of the transcripts; empty: beside the recordings.
        form: format of the transcripts, a key of `SUFFIXES`.
    """
    files: list[tuple[Path, Path]] = []  # audio file, and its transcript's path with the audio's suffix
    for path in paths:
        root = Path(output) if output else root_of(path)
        if not path.is_dir():
            files.append((path, root / (path.name if str(path) != STANDARD_INPUT else "standard-input")))
            continue
        every = sorted(file for file in path.rglob("*") if file.is_file())
        audio = [x for x in every if not x.name.startswith(".") and x.suffix not in OTHERS]
        if len(audio) < len(every):
            names = "transcript or hidden file", "transcripts or hidden files"
            log.warning("%s: skipped %s", path, counted(len(every) - len(audio), *names))
        files += [(file, root / file.relative_to(path)) for file in audio]
    same = Counter(place.with_suffix("") for _, place in files)
    stems = [place if same[place.with_suffix("")] > 1 else place.with_suffix("") for _, place in files]
    return [
        AudioFile(file, stem.with_name(stem.name + SUFFIXES[form]))
        for (file, _), stem in zip(files, stems, strict=True)
    ]


def root_of(path: Path) -> Path:
    """Return the folder for transcripts beside the recordings of a file or folder."""
    return path if path.is_dir() else path.parent


def check_places(files: Sequence[AudioFile]) -> None:
    """Raise UserError if a transcript can't be written, or two recordings would share one."""
    written: dict[Path, Path] = {}
    for file, place in files:
        if place in written:
            raise UserError(
                f"{written[place]} and {file}: expected different transcripts, found {place} for both"
            )
        written[place] = file
        check_writable(place)
