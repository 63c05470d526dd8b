"""Transcripts of data that no recipe knows: normalised by a named rule."""

import re
import unicodedata

from asr.errors import UserError, did_you_mean

RULES = ["none", "lower", "words"]
# A word: letters, marks and digits, with apostrophes and hyphens inside; or a tag such as <NOISE>.
_WORD = re.compile(r"<\w+>|[^\W_]+(?:['-][^\W_]+)*", re.UNICODE)
_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "‑": "-", "‐": "-"})


def check_rule(rule: str) -> None:
    """Raise `UserError` unless the rule is known."""
    if rule not in RULES:
        raise UserError(f"text={rule}: unknown rule{did_you_mean(rule, RULES)}")


def normalise(text: str, rule: str) -> str:
    """Return a transcript in Unicode's composed form, one space between words.

    Args:
        text: as it is written.
        rule: `none`; `lower`: lower-case, but tags such as `<NOISE>`; `words`: that and no punctuation.

    >>> normalise("It’s  “well-known”, isn't it? <NOISE>", "words")
    "it's well-known isn't it <NOISE>"
    """
    text = " ".join(unicodedata.normalize("NFC", text).split())
    if rule == "none":
        return text
    if rule == "words":
        marks = unicodedata.normalize("NFC", text.translate(_APOSTROPHES))
        return " ".join(_lower(word) for word in _WORD.findall(marks))
    return " ".join(_lower(word) for word in text.split())


def _lower(word: str) -> str:
    return word if re.fullmatch(r"<\w+>", word) else word.lower()
