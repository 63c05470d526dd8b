"""The lexicon of Switchboard: the distribution's dictionary, or CMUdict."""

from collections.abc import Iterable
from pathlib import Path

from asr.errors import UserError
from asr.preparation import read_lines
from asr.text.cmudict import cmudict_entries, cmudict_lexicon, without_stress
from asr.text.lexicon import Lexicon, Phones
from asr.text.tokenizer import NON_SPEECH_NOISE, SPOKEN_NOISE

from .words import map_word

NOISES: dict[str, list[Phones]] = {
    "[noise]": [(NON_SPEECH_NOISE,)],
    "[vocalized-noise]": [(SPOKEN_NOISE,)],
    "[laughter]": [("LAU",)],
}
# Letter names, most of which the MS98 dictionary lacks, in its phones.
LETTERS = """
a ey|b b iy|c s iy|d d iy|e iy|f eh f|g jh iy|h ey ch|i ay|j jh ey|k k ey|l eh l|m eh m|n eh n|o ow|p p iy
q k y uw|r aa r|s eh s|t t iy|u y uw|v v iy|w d ah b ax l y uw|x eh k s|y w ay|z z iy
"""


def read_dictionary(path: Path) -> tuple[Lexicon, int]:
    """Read sw-ms98-dict.text: `word ph ph …`, words with transcript markup, `#` for comments.

    Returns:
        The lexicon with noises and letters, and the number of entries left out for lack of a word or phones.

    Raises:
        UserError: the file can't be read or has no entries.
    """
    pronunciations: dict[str, list[Phones]] = {}
    left_out = 0
    for _, line in read_lines(path):
        if line.startswith("#"):
            continue
        written, *phones = line.lower().split()
        try:
            word = map_word(written)
        except ValueError:
            word = None
        if word is None or word in NOISES or not phones:
            left_out += 1
            continue
        known = pronunciations.setdefault(word, [])
        if tuple(phones) not in known:
            known.append(tuple(phones))
    if not pronunciations:
        raise UserError(f"{path}: expected a dictionary of `word ph ph …` lines, found no entry")
    return Lexicon(pronunciations).merged(Lexicon(letters())).merged(Lexicon(NOISES)), left_out


def letters() -> dict[str, list[Phones]]:
    """Return the pronunciations of the letters."""
    entries = (entry.split() for line in LETTERS.split("\n") for entry in line.split("|") if entry)
    return {letter: [tuple(phones)] for letter, *phones in entries}


def public_lexicon(words: Iterable[str]) -> Lexicon:
    """Return CMUdict's pronunciations of the words, with letters and noises."""
    entries = cmudict_entries()
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    named = {letter: [without_stress(said) for said in entries[f"{letter}."]] for letter in alphabet}
    return cmudict_lexicon(words).merged(Lexicon(named)).merged(Lexicon(NOISES))
