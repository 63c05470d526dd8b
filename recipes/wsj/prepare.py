"""Recipe `wsj`: converts WSJ0 and WSJ1 (discs or merged) to manifests, lexicon and language models."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from asr.data.facts import audio_facts, header_facts, samples_as_expected
from asr.data.places import WORD_RULES
from asr.files import file_state
from asr.preparation.cuts import recording, utterance_cut
from asr.preparation.outputs import UNFINISHED
from asr.preparation.run import Preparation
from asr.text.g2p import installed_model
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import NOISE_WORD

from .language_models import model_files, sentences, text_files, write_model
from .layout import Distribution, find_distribution
from .options import Options
from .pronunciations import build_lexicon
from .scoring import SCORING
from .selection import Selection, select

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

Writer = Callable[[Path], object]

SAMPLE_RATE = 16000
TRAINED = "si284", "si84"
LICENCE = """LDC93S6A or LDC93S6B (WSJ0) and LDC94S13A or LDC94S13B (WSJ1), licensed by the Linguistic Data
Consortium. Manifests, lexicon and texts contain parts of the corpus: the same restrictions apply to them."""


def prepare(options: Options, folder: Path) -> None:
    """Write the manifests of all splits, lexicon.txt, lm/ and scoring.json below `folder`.

    Raises:
        UserError: `corpus` isn't a copy of WSJ, or a part is missing or broken without `allow_partial`.
    """
    distribution = find_distribution(options.corpus)
    guess = installed_model() if options.g2p else None
    packages = ["g2p-en"] if guess else []
    preparation = Preparation("wsj", folder, options, packages=packages)
    if preparation.is_done([options.corpus]):
        return
    for message in distribution.missing_parts():
        preparation.problem(message, "missing_parts")
    preparation.check()
    selection = select(distribution, preparation)
    preparation.check()
    # Utterances without words may have an empty audio file.
    audio = sorted((name, path) for name, path in selection.audio.items() if name in selection.texts)
    read_facts = audio_facts if options.verify else header_facts
    headers = preparation.map(read_facts, [path for _, path in audio], "reading audio", key=file_state)
    samples: dict[str, int] = {}
    for (name, path), facts in zip(audio, headers, strict=True):
        if facts is not None:
            with preparation.reporting():
                samples[name] = samples_as_expected(path, facts, SAMPLE_RATE)
    preparation.check()
    trained = {name for split in TRAINED for name in selection.splits.get(split, ())}
    words = {word for name in trained for word in selection.texts.get(name, "").split()}
    lexicon, guessed, unknown = build_lexicon(words, guess)
    texts: dict[str, Iterable[str]] = {}
    files: dict[str, Writer] = {WORD_RULES: SCORING.save}
    if options.language_models:
        texts, models = _language_models(distribution, preparation)
        files |= models
    if guessed:
        files["guessed.txt"] = Lexicon({word: lexicon.pronunciations[word] for word in guessed}).save
    preparation.finish(
        {split: _cuts(names, selection, samples) for split, names in selection.splits.items()},
        lexicon=lexicon,
        texts=texts,
        files=files,
        sources=[options.corpus],
        notes={"Words": _words_note(selection, guessed, unknown), "Licence": LICENCE},
        train="si284",
    )


def _cuts(names: Iterable[str], selection: Selection, samples: dict[str, int]) -> "Iterator[MonoCut]":
    for name in names:
        if name in selection.texts and name in samples:
            source = recording(name, selection.audio[name], samples[name], SAMPLE_RATE)
            yield utterance_cut(name, source, selection.texts[name], speaker=name[:3])


def _language_models(
    distribution: Distribution, preparation: Preparation
) -> tuple[dict[str, Iterable[str]], dict[str, Writer]]:
    """Return texts and files for `Preparation.finish`; missing or broken files become problems."""
    models, missing = model_files(distribution)
    texts = text_files(distribution)
    for path in missing:
        preparation.problem(
            f"{distribution.root}: expected the language model {path}, found none", "missing_parts"
        )
    if not texts:
        preparation.problem(
            f"{distribution.root}: expected text for language models, found none", "missing_parts"
        )
    place = preparation.folder / UNFINISHED / "models"
    jobs = [(path, place / f"{name}.arpa.gz") for name, path in models.items()]
    written = preparation.map(
        write_model, jobs, "unpacking language models", threads=True, kind="missing_parts"
    )
    files: dict[str, Writer] = {
        f"lm/{target.name}": target.replace for (_, target), done in zip(jobs, written, strict=True) if done
    }
    return ({"train": _sentences(texts, preparation)} if texts else {}), files


def _sentences(texts: list[Path], preparation: Preparation) -> Iterator[str]:
    for path in texts:
        with preparation.reporting():
            yield from sentences(path)


def _words_note(selection: Selection, guessed: list[str], unknown: list[str]) -> str:
    noises = sum(text.split().count(NOISE_WORD) for text in selection.texts.values())
    return (
        f"`{NOISE_WORD}`, trained as NSN: {noises:,}. Distinct words of train outside CMUdict: "
        f"{len(guessed):,} pronounced by g2p_en (guessed.txt), {len(unknown):,} trained as SPN. "
        "Error rates with different lexica are not comparable."
    )
