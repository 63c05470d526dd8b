"""Recipe `librispeech`: converts a local or downloaded LibriSpeech to manifests, lexicon and text."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.data.facts import audio_facts, header_facts, samples_as_expected
from asr.errors import UserError
from asr.preparation.cuts import recording, utterance_cut
from asr.preparation.download import download, unpack
from asr.preparation.lexicon import lexicon_packages, word_lexicon
from asr.preparation.run import Preparation
from asr.text.files import read_lines

from .options import Options
from .parts import PARTS, parts_by_split

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

LICENCE = "CC BY 4.0: V. Panayotov, G. Chen, D. Povey, S. Khudanpur, LibriSpeech, ICASSP 2015."
SAMPLE_RATE = 16000
# [id, text, samples]: plain data, so that a thousand hours fit in memory.
Utterance = list[Any]


def prepare(options: Options, folder: Path) -> None:
    """Write the manifests of all splits, lexicon.txt and lm/train.txt below `folder`.

    Raises:
        UserError: `corpus` isn't a copy of LibriSpeech, or a part is missing or broken without
            `allow_partial`.
    """
    splits = parts_by_split(options.subset, options.evaluation)
    wanted = [part for parts in splits.values() for part in parts]
    preparation = Preparation("librispeech", folder, options, packages=lexicon_packages(options.lexicon))
    corpus = Path(options.corpus) if options.corpus else folder / "corpus" / "LibriSpeech"
    if options.download:
        preparation.refuse_shard("download=true")
        fetch([part for part in wanted if not (corpus / part).is_dir()], corpus, options, preparation)
    else:
        check_corpus(corpus, wanted, options)
    sources: list[str | Path] = [*(corpus / part for part in wanted), *filter(None, [options.lexicon])]
    if preparation.is_done(sources):
        return
    utterances = {part: _read(part, corpus, preparation, options.verify) for part in wanted}
    preparation.check()
    words = {word for members in utterances.values() for _, text, _ in members for word in text.split()}
    preparation.finish(
        {split: _cuts(corpus, parts, utterances) for split, parts in splits.items()},
        dictionary=word_lexicon(words, options.lexicon, preparation),
        texts={"train": (text for part in splits["train"] for _, text, _ in utterances[part])},
        sources=sources,
        notes={"Text": "Transcripts are lower-cased and otherwise unchanged.", "Licence": LICENCE},
    )


def check_corpus(corpus: Path, wanted: list[str], options: Options) -> None:
    """Raise a `UserError` describing the folder if it has none of the wanted parts."""
    if any((corpus / part).is_dir() for part in wanted):
        return
    where = f"corpus={options.corpus}" if options.corpus else str(corpus)
    expected = f"expected {', '.join(wanted)} below"
    if not corpus.is_dir():
        raise UserError(f"{where}: {expected}, found no such folder; download=true fetches what is missing")
    if corpus.name in PARTS:
        raise UserError(f"{where}: this looks like the part {corpus.name}; the parent is needed")
    if (corpus / "LibriSpeech").is_dir():
        raise UserError(f"{where}: this looks like the parent of LibriSpeech; name {corpus / 'LibriSpeech'}")
    if archives := sorted(path.name for path in corpus.glob("*.tar.gz")):
        raise UserError(f"{where}: {expected}, found archives; unpack them first: {', '.join(archives)}")
    others = sorted(part for part in PARTS if (corpus / part).is_dir())
    found = (
        f"{', '.join(others)}; select them with subset= and evaluation=" if others else "none of LibriSpeech"
    )
    raise UserError(f"{where}: {expected}, found {found}; download=true fetches what is missing")


def fetch(parts: list[str], corpus: Path, options: Options, preparation: Preparation) -> None:
    """Download and unpack parts into `corpus`, each completely or not at all."""
    for part in parts:
        archive = corpus.parent / f"{part}.tar.gz"
        preparation.say(f"{part}: downloading to {archive}")
        url = f"{options.mirror.rstrip('/')}/{PARTS[part].resource}/{part}.tar.gz"
        download(url, archive, PARTS[part].checksum)
        preparation.say(f"{part}: unpacking")
        unpack(archive, f"LibriSpeech/{part}", corpus / part)
        if not options.keep_archives:
            archive.unlink()


def read_chapter_headers(folder: str) -> dict[str, list[Any]]:
    """Like `read_chapter`, but read only the headers of the audio files."""
    return read_chapter(folder, header_facts)


def read_chapter(
    folder: str, read_facts: Callable[[str], tuple[int, int, int]] = audio_facts
) -> dict[str, list[Any]]:
    """Return the `utterances` [id, text, samples] of a chapter's folder, and the `problems` with the rest."""
    utterances: list[Utterance] = []
    problems: list[tuple[str, str]] = []
    transcripts = sorted(Path(folder).glob("*.trans.txt"))
    if not transcripts:
        raise UserError(f"{folder}: expected a transcript file (*.trans.txt), found none", "missing_text")
    transcribed = set()
    prefix = "-".join(Path(folder).parts[-2:]) + "-"  # speaker and chapter
    for path in transcripts:
        for number, line in read_lines(path):
            name, _, text = line.strip().partition(" ")
            audio = os.path.join(folder, f"{name}.flac")
            try:
                if not name.startswith(prefix):
                    raise UserError(
                        f"{path}:{number}: expected an id that begins with {prefix}, found {name}"
                    )
                if name in transcribed:
                    raise UserError(f"{path}:{number}: expected ids to be distinct, found {name} again")
                transcribed.add(name)
                if not text:
                    raise UserError(f"{path}:{number}: expected a transcript of {name}, found none")
                # lhotse's own preparation skips missing files with a warning.
                if not os.path.exists(audio):
                    raise UserError(
                        f"{path}:{number}: expected the audio of {name}, found no {audio}", "missing_audio"
                    )
                samples = samples_as_expected(audio, read_facts(audio), SAMPLE_RATE)
                utterances.append([name, " ".join(text.lower().split()), samples])
            except UserError as error:
                problems.append((str(error), error.kind or "damaged_audio"))
    for path in sorted(Path(folder).glob("*.flac")):
        if path.stem not in transcribed:
            message = f"{path}: expected its transcript in {transcripts[0].name}, found none"
            problems.append((message, "missing_text"))
    return {"utterances": utterances, "problems": problems}


def chapter_state(folder: str) -> str:
    """Return a key that changes whenever a file of the chapter changes."""
    with os.scandir(folder) as entries:
        states = sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in entries)
    return f"{folder} {states}"


def _read(part: str, corpus: Path, preparation: Preparation, verify: bool) -> list[Utterance]:
    """Return the utterances of a part, ordered by id."""
    chapters = sorted(str(path) for path in (corpus / part).glob("*/*") if path.is_dir())
    if not chapters:
        preparation.problem(
            f"{corpus / part}: expected <speaker>/<chapter> folders, found none (part {part})",
            "missing_parts",
        )
        return []
    utterances: list[Utterance] = []
    read = read_chapter if verify else read_chapter_headers
    for chapter in preparation.map(read, chapters, part, key=chapter_state):
        if chapter is not None:
            utterances += chapter["utterances"]
            for problem in chapter["problems"]:
                preparation.problem(*problem)
    preparation.expect(f"{part}: utterances", PARTS[part].utterances, len(utterances))
    return sorted(utterances)


def _cuts(corpus: Path, parts: Iterable[str], utterances: dict[str, list[Utterance]]) -> "Iterator[MonoCut]":
    for part in parts:
        for name, text, samples in utterances[part]:
            speaker, chapter, _ = name.split("-", 2)
            audio = os.path.join(corpus, part, speaker, chapter, f"{name}.flac")
            yield utterance_cut(name, recording(name, audio, samples, SAMPLE_RATE), text, speaker)
