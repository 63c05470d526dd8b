"""Finds the files of Switchboard (LDC97S62), its transcripts and eval2000."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from asr.errors import UserError

from .transcripts import FILE as TRANSCRIPT

DICTIONARY = "sw-ms98-dict.text"
DISC = re.compile(r"(swb1|swbd1|sw1)?[_-]?d(isc)?[_-]?\d+", re.IGNORECASE)
EVALUATION = re.compile(r"(sw|en)_\d+\.sph")  # audio of eval2000 and other evaluation sets
PEM, STM, GLM = "hub5e_00.pem", "hub5e00.english.000405.stm", "en20000405_hub5.glm"
LDC = "LDC97S62"


@dataclass
class Corpus:
    """The files of Switchboard.

    Attributes:
        audio: SPHERE files by conversation, `sw02001`.
        transcripts: transcript files by conversation side, `sw02001-A`.
        dictionary: the distribution's lexicon; None if missing.
        repeated: pairs of audio files or transcripts with the same name and different lengths.
        ignored: number of audio files of evaluation sets, `sw_4390.sph`.
    """

    audio: dict[str, str] = field(default_factory=dict)
    transcripts: dict[str, str] = field(default_factory=dict)
    dictionary: Path | None = None
    repeated: list[tuple[str, str]] = field(default_factory=list)
    ignored: int = 0


@dataclass
class Eval2000:
    """The files of the test set: audio by conversation, segments, reference, mapping rules."""

    audio: dict[str, str]
    pem: Path
    stm: Path
    glm: Path


def find_corpus(corpus: str, transcripts: str = "") -> Corpus:
    """Search the given folders, ignoring case.

    Raises:
        UserError: a folder is missing, is a single disc, or has no audio or no transcripts.
    """
    root = _folder("corpus", corpus)
    contents = Corpus()
    for path in _files(root, *([_folder("transcripts", transcripts)] if transcripts else [])):
        name = os.path.basename(path).lower()
        if EVALUATION.fullmatch(name):
            contents.ignored += 1
            continue
        if name.endswith(".sph"):
            first = contents.audio.setdefault(conversation_of(name), path)
        elif side := TRANSCRIPT.fullmatch(name):
            first = contents.transcripts.setdefault(f"sw0{side[1]}-{side[2].upper()}", path)
        elif name == DICTIONARY:
            contents.dictionary = contents.dictionary or Path(path)
            continue
        else:
            continue
        # Identical copies and links are harmless.
        if first != path and os.path.getsize(first) != os.path.getsize(path):
            contents.repeated.append((first, path))
    _refuse_disc(root, contents)
    if not contents.audio:
        kind = "transcripts without audio" if contents.transcripts else "something else"
        raise UserError(f"corpus={root}: expected the .sph files of {LDC} in it, found {kind}")
    if not contents.transcripts:
        raise UserError(
            f"corpus={root}: expected transcripts such as sw2001A-ms98-a-trans.text in it, found none; "
            "name their folder with transcripts=… (the MS98 transcripts are free: https://www.openslr.org/5 "
            "(or the link on the corpus' page at the LDC))"
        )
    return contents


def find_eval2000(speech: str, transcripts: str = "") -> Eval2000:
    """Search one folder for the test set, or one for the audio and one for the reference.

    Raises:
        UserError: a folder or a required file is missing.
    """
    roots = [_folder("eval2000", speech)]
    if transcripts:
        roots.append(_folder("eval2000_transcripts", transcripts))
    audio: dict[str, str] = {}
    named: dict[str, Path] = {}
    for path in _files(*roots):
        name = os.path.basename(path).lower()
        if EVALUATION.fullmatch(name):
            audio.setdefault(name.removesuffix(".sph"), path)
        named.setdefault(name, Path(path))
    below = " and ".join(str(root) for root in roots)
    if not audio:
        raise UserError(
            f"{below}: expected audio such as sw_4390.sph and en_4156.sph (LDC2002S09), found none"
        )
    missing = [name for name in (PEM, STM, GLM) if name not in named]
    if missing:
        hint = "" if missing == [PEM] else "; name the folder of LDC2002T43 with eval2000_transcripts=…"
        raise UserError(f"{below}: expected {', '.join(missing)} in it, found none{hint}")
    return Eval2000(audio, named[PEM], named[STM], named[GLM])


def conversation_of(name: str) -> str:
    """Return the conversation of a file: `sw2001.sph`, `sw2001A-ms98-a-trans.text` → `sw02001`."""
    number = re.match(r"sw0?(\d{4})", name.lower())
    return f"sw0{number[1]}" if number else name.lower().removesuffix(".sph")


def _folder(option: str, value: str) -> Path:
    if not value:
        raise UserError(f"{option}= is empty: name the folder with {LDC} (audio and MS98 transcripts)")
    path = Path(value)
    if not path.is_dir():
        raise UserError(f"{option}={path}: expected a folder, found {'a file' if path.exists() else 'none'}")
    return path.absolute()


def _files(*roots: Path) -> Iterator[str]:
    for root in roots:
        for place, folders, names in os.walk(root, followlinks=True):
            folders.sort()
            yield from (os.path.join(place, name) for name in sorted(names))


def _refuse_disc(root: Path, contents: Corpus) -> None:
    """Raise a `UserError` if the folder is one of several discs."""
    if DISC.fullmatch(root.name) is None or not contents.audio:
        return
    others = [path.name for path in root.parent.iterdir() if path.is_dir() and path != root]
    if others := sorted(name for name in others if DISC.fullmatch(name)):
        raise UserError(
            f"corpus={root}: this looks like the disc {root.name} alone; the parent is needed, which also "
            f"has {', '.join(others[:5])}"
        )
