"""Recipe `stamps`: convert the spoken descriptions of Tux Paint's stamps, in nine languages, to manifests."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import soundfile

from asr.data.audio import convert
from asr.data.audio_file import Undecodable, checked_samples, open_audio
from asr.data.facts import header_facts
from asr.errors import UserError
from asr.files import atomic_path, file_digest, file_state
from asr.preparation.cuts import recording, utterance_cut
from asr.preparation.download import debian_packages
from asr.preparation.run import Preparation
from asr.preparation.silence import speech_bounds
from asr.preparation.splits import hash_position

from .joined import joined_cuts
from .options import LANGUAGES, Options
from .texts import groups, read_texts, spoken, stamp_and_language, unusable

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

PACKAGE = "tuxpaint-stamps-default"
LICENCE = "GPL-2: the authors of Tux Paint's stamps; the package's file `copyright` names them."
RATE = 16000
# Fractions of the groups of stamps in test and dev; a group with more than LARGEST_GROUP stamps is in train.
TEST_SHARE, DEV_SHARE, LARGEST_GROUP = 0.12, 0.08, 6


@dataclass(frozen=True)
class Stamp:
    """A recording and its text.

    Attributes:
        name: path without suffix and language, below the folder `stamps`.
        language: language code.
        path: recording.
        written: text as in the package; empty if it has none.
    """

    name: str
    language: str
    path: Path
    written: str

    @property
    def id(self) -> str:
        """Utterance id: the language, then the name with hyphens for slashes."""
        return f"{self.language}-{self.name.replace('/', '-')}"

    @property
    def file(self) -> str:
        """Path of the converted recording."""
        return f"{self.language}/{self.name.replace('/', '-')}.wav"


def prepare(options: Options, folder: Path) -> None:
    """Write `wav/<language>/*.wav` (16 kHz, mono, trimmed), `<split>.cuts.jsonl.gz` and `excluded.tsv`.

    The split depends only on the package, not on the chosen languages.

    Raises:
        UserError: the package or a language is missing, or a recording can't be read.
    """
    preparation = Preparation("stamps", folder, options)
    source = Path(options.source)
    if not options.source:
        preparation.refuse_shard("the download of source=")
        hint = "or name a folder with its content: source=…"
        source = debian_packages([PACKAGE], folder / "packages", preparation.console, "160 MB", hint)
    if preparation.is_done([source]):
        return
    texts, stamps = _read(source, options.languages)
    split_of = _splits(texts)
    usable = _usable(stamps, preparation)
    tasks = [(stamp, folder / "wav" / stamp.file, options) for stamp in usable]
    outcomes = preparation.map(_convert, tasks, "converting", key=_key)
    preparation.check()
    kept: dict[str, list[tuple[Stamp, int]]] = {"train": [], "dev": [], "test": []}
    audio = {}
    for stamp, result in zip(usable, outcomes, strict=True):
        if isinstance(result, str):
            preparation.drop(stamp.id, result, stamp.written)
        elif result is not None:
            samples, digest = result
            kept[split_of[stamp.name]].append((stamp, samples))
            audio[f"wav/{stamp.file}"] = digest
    splits = {split: list(_cuts(members, folder / "wav")) for split, members in kept.items()}
    if options.joined_s:
        for split in ["dev", "test"]:
            place = folder / "wav" / f"{split}_joined"
            splits[place.name] = list(joined_cuts(splits[split], options.joined_s, place))
            audio |= {f"wav/{place.name}/{path.name}": file_digest(path) for path in place.glob("*.wav")}
    preparation.finish(
        splits,
        texts={"train": (spoken(stamp.written) for stamp, _ in kept["train"])},
        sources=[source],
        notes={"Licence": LICENCE},
        audio=audio,
    )


def _read(source: Path, languages: list[str]) -> tuple[dict[str, dict[str, str]], list[Stamp]]:
    """Return the texts of every stamp, and the recordings in the languages wanted, sorted."""
    if not source.is_dir():
        raise UserError(f"source={source}: expected a folder, found none")
    roots = sorted(path for path in source.rglob("stamps") if path.parent.name == "tuxpaint")
    if not roots:
        raise UserError(f"{source}: expected the folder tuxpaint/stamps in it, found none")
    root = roots[0]
    texts = {_name(path.with_suffix(""), root): read_texts(path) for path in sorted(root.rglob("*.txt"))}
    stamps = []
    for path in sorted(root.rglob("*_desc_*.ogg")):
        stem, language = stamp_and_language(path.name)
        name = _name(path.with_name(stem), root)
        stamps.append(Stamp(name, language, path, texts.get(name, {}).get(language, "")))
    recorded = [language for language in LANGUAGES if any(stamp.language == language for stamp in stamps)]
    if not languages or not set(languages) <= set(recorded):
        raise UserError(f"languages={languages}: expected some of {', '.join(recorded)} (those recorded)")
    return texts, [stamp for stamp in stamps if stamp.language in languages]


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _splits(texts: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the split of every stamp: its group's hash decides; large groups are in train."""
    splits = {}
    # Over all languages, prepared or not: the split must not depend on the chosen ones.
    for phrase, members in groups(texts, ["en", *LANGUAGES]).items():
        place = hash_position(phrase)
        held_out = "test" if place < TEST_SHARE else "dev" if place < TEST_SHARE + DEV_SHARE else "train"
        split = held_out if len(members) <= LARGEST_GROUP else "train"
        splits.update(dict.fromkeys(members, split))
    return splits


def _usable(stamps: list[Stamp], preparation: Preparation) -> list[Stamp]:
    """Return the recordings whose texts may be their transcripts, each recording once; drop the others."""
    same: dict[str, list[Stamp]] = defaultdict(list)
    for stamp in stamps:
        same[file_digest(stamp.path)].append(stamp)
    usable = []
    for copies in same.values():
        distinct = len({spoken(stamp.written) for stamp in copies} - {""})
        # The first copy with a usable text: a recording often serves several stamps, some without text.
        first = next((stamp for stamp in copies if not unusable(stamp.written, stamp.language)), None)
        for stamp in copies:
            reason = unusable(stamp.written, stamp.language)
            if not reason and distinct > 1:
                reason = "copies of the recording have other texts"
            elif not reason and stamp is not first:
                reason = "a copy of another recording"
            if reason:
                preparation.drop(stamp.id, reason, stamp.written)
            else:
                usable.append(stamp)
    return usable


def _key(task: tuple[Stamp, Path, Options]) -> str:
    stamp, _, options = task
    rules = (options.fastest, options.silence_db, options.margin_s)
    return f"{file_state(stamp.path)} {stamp.written} {rules}"


def _convert(task: tuple[Stamp, Path, Options]) -> tuple[int, str] | str:
    """Write a recording at 16 kHz, mono, trimmed; return samples and hash, or the reason to leave it out."""
    stamp, path, options = task
    samples, rate, _ = header_facts(stamp.path)
    if rate < RATE:
        return "a placeholder: less than 16 kHz"
    if len(spoken(stamp.written)) * rate / samples > options.fastest:
        return "cut short: too many characters a second"
    try:
        with open_audio(stamp.path) as file:
            channels = file.read()
    except Undecodable as error:
        raise UserError(f"{stamp.path}: expected an audio file, found a damaged one ({error})") from None
    whole = convert(checked_samples(channels, str(stamp.path)).mean(axis=1), rate, RATE)
    bounds = speech_bounds(whole, RATE, options.silence_db)
    if bounds is None:
        return "silence"
    start, end = (round(RATE * s) for s in (bounds[0] - options.margin_s, bounds[1] + options.margin_s))
    speech = whole[max(0, start) : end]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path, sync=False) as draft:
        soundfile.write(draft, speech, RATE, subtype="PCM_16", format="WAV")
    return len(speech), file_digest(path)


def _cuts(members: list[tuple[Stamp, int]], folder: Path) -> "Iterator[MonoCut]":
    for stamp, samples in members:
        whole = recording(stamp.id, folder / stamp.file, samples, RATE)
        # The package doesn't name its readers, one or a few for each language.
        yield utterance_cut(
            stamp.id, whole, spoken(stamp.written), speaker=stamp.language, language=stamp.language
        )
