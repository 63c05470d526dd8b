"""The lexicon of Switchboard: the distribution's dictionary, or CMUdict."""

from pathlib import Path

from asr.errors import UserError
from asr.text.cmudict import cmudict_entries, cmudict_lexicon, without_stress
from asr.text.files import read_lines
from asr.text.lexicon import Lexicon, Phones
from asr.text.tokenizer import NON_SPEECH_NOISE, SPOKEN_NOISE

from .words import map_word

NOISES: dict[str, list[Phones]] = {
    "[noise]": [(NON_SPEECH_NOISE,)],
    "[vocalized-noise]": [(SPOKEN_NOISE,)],
    "[laughter]": [("LAU",)],
}
# Letter names, most of which the MS98 dictionary lacks, in its phones; equal to Kaldi's MSU_single_letter.txt
# (swbd/s5c), as quoted by public recipes.
LETTERS = """
a ey|b b iy|c s iy|d d iy|e iy|f eh f|g jh iy|h ey ch|i ay|j jh ey|k k ey|l eh l|m eh m|n eh n|o ow|p p iy
q k y uw|r aa r|s eh s|t t iy|u y uw|v v iy|w d ah b ax l y uw|x eh k s|y w ay|z z iy
"""
# The 42 phones of the MS98 dictionary: CMUdict's 39 with ax, el and en. Checked against Kaldi's recipe
# fisher_swbd, which maps its pronunciations to CMUdict's phones by replacing just these three. The dictionary
# itself was not at hand; lines with other phones are left out and listed.
PHONES = """
aa ae ah ao aw ax ay b ch d dh eh el en er ey f g hh ih iy jh k l m n ng ow oy p r s sh t th uh uw v w y z zh
"""
WRONG = {("b", "ay zh aa n iy z")}  # the pronunciation of another word


def read_dictionary(path: Path) -> tuple[Lexicon, list[str]]:
    """Read sw-ms98-dict.text: `word ph ph …`, words with transcript markup, `#` for comments.

    A letter's name precedes the dictionary's pronunciations of it, except for the article `a`.

    Returns:
        Lexicon with noises and letters; lines left out, each with its number and the reason.

    Raises:
        UserError: the file can't be read or has no entries.
    """
    known_phones = {*PHONES.split(), "sil", "spn", "nsn", "lau"}
    pronunciations: dict[str, list[Phones]] = {}
    left_out: list[str] = []
    for number, line in read_lines(path):
        written, *phones = line.lower().split()
        if line.startswith("#") or written == "file:":  # the head of the file
            continue
        try:
            word = map_word(written)
        except ValueError:
            word = None
        if word is None or word in NOISES:
            left_out.append(f"line {number}: no word: {line.strip()}")
            continue
        if not phones or not known_phones.issuperset(phones) or (word, " ".join(phones)) in WRONG:
            unknown = " ".join(phone for phone in phones if phone not in known_phones)
            reason = "no phones" if not phones else f"unknown phones {unknown}" if unknown else "wrong"
            left_out.append(f"line {number}: {reason}: {line.strip()}")
            continue
        known = pronunciations.setdefault(word, [])
        if tuple(phones) not in known:
            known.append(tuple(phones))
    if not pronunciations:
        raise UserError(f"{path}: expected a dictionary of `word ph ph …` lines, found no entry")
    article = Lexicon({"a": pronunciations.get("a", [])})
    return article.merged(Lexicon(letters())).merged(Lexicon(pronunciations)).merged(
        Lexicon(NOISES)
    ), left_out


def letters() -> dict[str, list[Phones]]:
    """Return the pronunciation of each letter's name, in the dictionary's phones."""
    entries = (entry.split() for line in LETTERS.split("\n") for entry in line.split("|") if entry)
    return {letter: [tuple(phones)] for letter, *phones in entries}


def public_dictionary() -> Lexicon:
    """Return CMUdict with letters and noises."""
    entries = cmudict_entries()
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    named = {letter: [without_stress(said) for said in entries[f"{letter}."]] for letter in alphabet}
    return cmudict_lexicon().merged(Lexicon(named)).merged(Lexicon(NOISES))
