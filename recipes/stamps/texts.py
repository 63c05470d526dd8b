"""Tux Paint's text files: texts by language, normalised, masked for the split; reasons for exclusion."""

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from asr.text.files import read_lines
from asr.text.normalise import normalise

_TRANSLATION = re.compile(r"([\w@]+)\.utf8=(.*)")
_NAME = re.compile(r"(.+)_desc_([\w@]+)(?:\.ogg)+")  # one name ends in .ogg.ogg
_PUNCTUATION = frozenset(".,;:!?¡¿…\"“”«»„'’‘-–—")
# In Catalan, the letters around a middle dot (`il·lusió`) are one sound.
_SILENT = str.maketrans("", "", "·\u00ad")
_ALPHABETS = {"ru": "CYRILLIC", "bg": "CYRILLIC", "be": "CYRILLIC", "el": "GREEK"}


def stamp_and_language(name: str) -> tuple[str, str]:
    """Return the stamp and the language of a recording's file name.

    >>> stamp_and_language("blackbird_desc_fr.ogg")
    ('blackbird', 'fr')
    """
    match = _NAME.fullmatch(name)
    return (match[1], match[2]) if match else ("", "")


def read_texts(path: Path) -> dict[str, str]:
    """Return a stamp's texts by language: the first line is English, the others `<language>.utf8=<text>`."""
    (_, english), *others = read_lines(path) or [(1, "")]
    matches = (_TRANSLATION.match(line) for _, line in others)
    return {"en": english.strip()} | {match[1]: match[2].strip() for match in matches if match}


def spoken(written: str) -> str:
    """Return the words of a text in lower case, without punctuation.

    >>> spoken("Une fusée-jouet… C’est « grand » !")
    "une fusée jouet c'est grand"
    """
    return normalise(written.translate(_SILENT), "words").replace("-", " ")


def unusable(written: str, language: str) -> str:
    """Return the reason why a text can't be the transcript of its recording; empty if it can."""
    text = unicodedata.normalize("NFC", written).translate(_SILENT)
    words = spoken(text).split()
    if not words:
        return "no text"
    if re.search(r"[(\[{<]", text):
        return "text in brackets"
    if any(not (x.isalpha() or x.isspace() or x in _PUNCTUATION) for x in text):
        return "digits or signs"
    alphabet = _ALPHABETS.get(language, "LATIN")
    if not all(_written_in(alphabet, word) for word in words if len(word) > 1):
        return "words in another alphabet"
    return ""


def _written_in(alphabet: str, word: str) -> bool:
    return all(unicodedata.name(x, "").startswith(alphabet) for x in word if x.isalpha())


def masked(text: str) -> str:
    """Return a spoken text with single letters and numbers as `#`: the phrase that many stamps share.

    >>> masked("la lettre e"), masked("le chiffre 12")
    ('la lettre #', 'le chiffre #')
    """
    return " ".join("#" if len(word) == 1 or word.isdigit() else word for word in text.split())


def groups(texts: dict[str, dict[str, str]], languages: Iterable[str]) -> dict[str, list[str]]:
    """Return the stamps that share a phrase in any language, directly or through others.

    Args:
        texts: written texts by language, of each stamp.
        languages: languages to consider.

    Returns:
        Sorted stamps of each group, by the alphabetically first English text.
    """
    parent = {stamp: stamp for stamp in texts}

    def root(stamp: str) -> str:
        while parent[stamp] != stamp:
            parent[stamp] = parent[parent[stamp]]
            stamp = parent[stamp]
        return stamp

    first: dict[tuple[str, str], str] = {}
    for stamp, by_language in texts.items():
        for language in languages:
            if phrase := masked(spoken(by_language.get(language, ""))):
                parent[root(stamp)] = root(first.setdefault((language, phrase), stamp))
    members: dict[str, list[str]] = {}
    for stamp in sorted(texts):
        members.setdefault(root(stamp), []).append(stamp)
    named = {min(masked(spoken(texts[stamp]["en"])) for stamp in group): group for group in members.values()}
    return dict(sorted(named.items()))
