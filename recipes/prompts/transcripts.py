"""Parses the prompts' transcript file, normalises the texts and excludes unusable recordings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from asr.text import normalise as text_rules

DIGITS = {
    "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    "es": ["cero", "uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve"],
    "fr": ["zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf"],
    "it": ["zero", "uno", "due", "tre", "quattro", "cinque", "sei", "sette", "otto", "nove"],
    "ru": ["ноль", "один", "два", "три", "четыре", "пять", "шесть", "семь", "восемь", "девять"],
}

# Typing errors in the file, and spellings that differ from CMUdict's.
CORRECTIONS = {
    "umute": "unmute",
    "fourtieth": "fortieth",
    "represenatives": "representatives",
    "exclaimation": "exclamation",
    "un-indentified": "unidentified",
    "witheld": "withheld",
    "re-enter": "reenter",
    "re-entered": "reentered",
    "re-record": "rerecord",
    "de-activated": "deactivated",
    "xray": "x-ray",
    "A.M.": "AM",
    "P.M.": "PM",
    "M I S D N": "MISDN",
    "N B S": "NBS",
    "3D": "3 D",
}  # fmt: skip

# Acronyms spoken as words; all other words in capitals are spelt out.
ACRONYMS = {"DAHDI", "SIP"}

_CORRECTED = re.compile(
    r"(?<!\w)(" + "|".join(map(re.escape, sorted(CORRECTIONS, key=len, reverse=True))) + r")(?!\w)",
    re.IGNORECASE,
)
_NOTE = re.compile(r"\(note:[^)]*\)|\[.\]")
_BRACKET = re.compile(r"\[[^\]]*\]|<[^>]*>|\([^)]*\)")
_UNREADABLE = re.compile(r"\S*(?:\d\d|\d\.\d|\w\.\d|www\.)\S*")
# A question mark within a sentence stands for an accented letter that the Italian file has lost.
_LOST = re.compile(r"\S*\?,?\s+[a-z]\w*|\S*\?\w\S*")


@dataclass(frozen=True)
class Prompt:
    """An entry of the transcript file.

    Attributes:
        key: path of the recording, without suffix.
        text: normalised text; as written if excluded.
        excluded: reason for exclusion; empty if usable.
    """

    key: str
    text: str
    excluded: str = ""


def parse_transcripts(lines: list[str], language: str = "en") -> Iterator[Prompt]:
    """Yield the `key: text` entries of the file; lines that begin with `;` are comments."""
    for line in lines:
        if not line.strip() or line.startswith(";"):
            continue
        key, colon, written = line.partition(":")
        key, written = key.strip(), written.strip()
        if not colon:
            yield Prompt(key, "", "no transcript: the line has no colon")
            continue
        english = language == "en"
        if reason := _unusable(written) or ("" if english else _unclear(_NOTE.sub(" ", written))):
            yield Prompt(key, written, reason)
        else:
            yield Prompt(key, normalise(written, key) if english else spoken(written, language))


def normalise(written: str, key: str = "") -> str:
    """Return the spoken words in lower case; letters are `a.` … `z.`, as in CMUdict.

    >>> normalise("Press 4 on the PBX, or # for A.M.")
    'press four on the p. b. x. or pound for a. m.'
    """
    text = _NOTE.sub(" ", written)
    text = _CORRECTED.sub(lambda x: CORRECTIONS.get(x[0]) or CORRECTIONS.get(x[0].lower(), x[0]), text)
    text = text.replace("*", " star ").replace("#", " pound ").replace("x-ray", "x_ray").replace("-", " ")
    if key.startswith("letters/") and len(text.strip()) == 1:
        return f"{text.strip().lower()}."
    words = (word.strip("'") for word in re.findall(r"[\w']+", text))
    return " ".join(spoken for word in words if word for spoken in _spoken(word))


def spoken(written: str, language: str) -> str:
    """Return the words of another language in lower case, single digits as words.

    >>> spoken("Pour l'effacer, appuyez sur 7 !", "fr")
    "pour l'effacer appuyez sur sept"
    """
    text = re.sub(r"\d", lambda digit: DIGITS[language][int(digit[0])], _NOTE.sub(" ", written))
    return text_rules.normalise(text, "words").replace("-", " ")


def _spoken(word: str) -> list[str]:
    if word.isdigit():
        return [DIGITS["en"][int(digit)] for digit in word]
    capitals = word.isalpha() and word.isupper()
    if capitals and word not in ACRONYMS and word not in {"I", "A"}:
        return [f"{letter}." for letter in word.lower()]
    return [word.lower().replace("_", "-")]


def _unusable(written: str) -> str:
    text = _NOTE.sub(" ", written)
    if _BRACKET.search(text):
        rest = _BRACKET.sub(" ", text).strip()
        return "speech mixed with another sound" if rest else "not speech"
    if match := _UNREADABLE.search(text):
        return f"unclear how {match[0]!r} is read"
    return "" if re.search(r"\w|[*#]", text) else "empty transcript"


def _unclear(written: str) -> str:
    """Return why a text of another language than English is excluded; empty if it is clear."""
    if lost := _LOST.search(written):
        return f"damaged text: {lost[0]!r}"
    for word in written.split():
        number = re.search(r"\d[^\W_]|[^\W_]\d|[^\W\d_]\W\d", word)
        if number or re.search(r"[*#@$%=]", word) or (word.isupper() and len(re.findall(r"\w", word)) > 1):
            return f"unclear how {word!r} is read"
    return ""
