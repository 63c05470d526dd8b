"""Transcripts as models are trained on them: Unicode's composed form, case and punctuation by a rule."""

import functools
import re
import unicodedata

_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "‑": "-", "‐": "-"})


def normalise(text: str, rule: str) -> str:
    """Return a transcript in Unicode's composed form (NFC), with one space between words.

    Args:
        text: transcript as written.
        rule: `none`, `lower` (lower-case except tags such as `<NOISE>`) or `words` (also no punctuation).

    >>> normalise("It’s  “well-known”, isn't it? <NOISE>", "words")
    "it's well-known isn't it <NOISE>"
    """
    text = " ".join(unicodedata.normalize("NFC", text).split())
    if rule == "none":
        return text
    if rule == "words":
        marks = unicodedata.normalize("NFC", text.translate(_APOSTROPHES))
        return " ".join(_lower(word) for word in _word().findall(marks))
    return text.lower() if "<" not in text else " ".join(map(_lower, text.split()))


@functools.cache
def _word() -> re.Pattern[str]:
    """Match letters, marks and digits, with apostrophes and hyphens inside; or a tag such as <NOISE>."""
    # `\w` lacks the combining marks, which are the vowels of many scripts, and the joiners between letters.
    marks = (chr(code) for code in range(0x20000) if unicodedata.category(chr(code))[0] == "M")
    letters = rf"(?:[^\W_]|[{re.escape(''.join(marks))}\u200c\u200d])+"
    return re.compile(rf"<\w+>|{letters}(?:['-]{letters})*")


def _lower(word: str) -> str:
    return word if re.fullmatch(r"<\w+>", word) else word.lower()
