"""Converts CMUdict pronunciations to espeak-ng mnemonics, so that the labels match the audio exactly."""

from collections.abc import Iterable, Sequence

from asr.text.cmudict import cmudict_entries, without_stress
from asr.text.lexicon import Lexicon, Phones

# espeak-ng's en-US mnemonics for the 39 phones; AH and ER depend on stress, see `_mnemonic`.
MNEMONICS = {
    "AA": "A:", "AE": "a", "AH": "V", "AO": "O:", "AW": "aU", "AY": "aI", "EH": "E", "ER": "3:", "EY": "eI",
    "IH": "I", "IY": "i:", "OW": "oU", "OY": "OI", "UH": "U", "UW": "u:",
    "B": "b", "CH": "tS", "D": "d", "DH": "D", "F": "f", "G": "g", "HH": "h", "JH": "dZ", "K": "k", "L": "l",
    "M": "m", "N": "n", "NG": "N", "P": "p", "R": "r", "S": "s", "SH": "S", "T": "t", "TH": "T", "V": "v",
    "W": "w", "Y": "j", "Z": "z", "ZH": "Z",
}  # fmt: skip

# Spoken without stress. REDUCED: in CMUdict's reduced form, if no other word shares it.
FUNCTION_WORDS = {
    "a", "about", "after", "an", "and", "are", "at", "be", "because", "but", "by", "could", "during", "for",
    "from", "had", "have", "in", "is", "it", "its", "of", "on", "or", "should", "some", "that", "the",
    "their", "they", "this", "to", "until", "was", "we", "were", "will", "with", "would",
}  # fmt: skip
REDUCED = {"an": ("AH0", "N"), "for": ("F", "ER0"), "to": ("T", "AH0"), "was": ("W", "AH0", "Z")}


def spoken(word: str) -> Phones:
    """Return the pronunciation used in the corpus, with stress digits."""
    phones = REDUCED.get(word, cmudict_entries()[word][0])
    if word in FUNCTION_WORDS:
        return tuple(phone.replace("1", "0").replace("2", "0") for phone in phones)
    return phones


def closed_lexicon(words: Iterable[str]) -> Lexicon:
    """Return the lexicon of the corpus.

    Each word has its spoken pronunciation first, then CMUdict's others, except those spoken for another word.
    """
    first = {word: without_stress(spoken(word)) for word in words}
    taken = set(first.values())
    entries = cmudict_entries()
    return Lexicon(
        {
            word: [said, *dict.fromkeys(p for p in map(without_stress, entries[word]) if p not in taken)]
            for word, said in sorted(first.items())
        }
    )


def mnemonics(words: Sequence[str], rhotic: bool) -> str:
    """Return espeak-ng input: phonemes separated by `|`, words by spaces."""
    return " ".join("|".join(_mnemonic(phone, rhotic) for phone in spoken(word)) for word in words)


def _mnemonic(phone: str, rhotic: bool) -> str:
    name, stress = phone.rstrip("012"), phone[-1]
    if phone == "AH0":
        return "@"
    # British voices pronounce `3` like AH0, which would make the labels ambiguous.
    if phone == "ER0" and rhotic:
        return "3"
    mark = {"1": "'", "2": ","}.get(stress, "")
    return mark + MNEMONICS[name]
