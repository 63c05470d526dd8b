"""Normalises transcripts for training: Unicode's composed form; a rule for case, punctuation and numbers."""

import functools
import html
import re
import unicodedata

from asr.text.numbers import knows_numbers, spoken_numbers, unspoken, without_signs

# Characters that look or serve like apostrophe and hyphen, also in Armenian and Hebrew, become these two.
_APOSTROPHES = str.maketrans(dict.fromkeys("’‘‛ʼ＇՚′`´", "'") | dict.fromkeys("‑‐֊־－﹣", "-"))
# Marks within words, not letters: Armenian stress, exclamation, question, abbreviation; Arabic kashida.
_WITHIN = re.compile("[՛՜՞՟ـ]")
# Sounds and remarks, [laughter], {breath}, <i>, aren't words, unlike those in round brackets; <NOISE> stays.
_SOUND = re.compile(r"\[[^\[\]]*\]|\{[^{}]*\}|<(?!\w+>)[^\s<>][^<>]*>")
_ASIDE = re.compile(r"\([^()]*[^\W\d_][^()]*\)|\*[^\s*]+\*")
_ENTITY = re.compile(r"&(?:\w+|#\d+|#x[0-9a-fA-F]+);")
# Invisible marks that editors and browsers leave behind: soft hyphens, zero-width spaces, directions, byte
# order marks, variants. The joiners U+200C and U+200D change the shape of letters, so they are kept.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_DOTTED = str.maketrans({"I": "ı", "İ": "i"})  # Turkish and Azeri
_DOTTED_LANGUAGES = frozenset(["tr", "tur", "az", "aze"])
_COLON_LANGUAGES = frozenset(["fi", "fin", "sv", "swe"])  # `EU:n`: suffix of an abbreviation
# Between letters, these are part of a word, as in Unicode's annex 29 (MidLetter): Catalan's middle dot, and
# the Hebrew geresh and gershayim, often written as quotes. The dot separates Chinese or Korean words.
_MID_LETTER = r"(?<=[A-Za-z])·(?=[A-Za-z])|[׳״]"
_HEBREW = {re.compile(rf"(?<=[א-ת]){quote}(?=[א-ת])"): mark for quote, mark in (("'", "׳"), ('["“”]', "״"))}
_COLON = r"(?<!\d):(?!\d)"


def plain_text(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), one space between words, without invisible marks.

    >>> plain_text("soft\\u00adware  cafe\\u0301\\u00a0noir\\u200b")
    'software café noir'
    """
    return " ".join(unicodedata.normalize("NFC", _INVISIBLE.sub("", text)).split())


def lower(text: str, language: str = "") -> str:
    """Return a text in lower case; the languages `tr` and `az` have pairs of letters of their own.

    >>> lower("ISPARTA İZMİR", "tr-TR"), lower("ISPARTA")
    ('ısparta izmir', 'isparta')
    """
    if _base(language) in _DOTTED_LANGUAGES:
        text = text.translate(_DOTTED)
    return text.lower()


def normalise(text: str, rule: str, language: str = "") -> str:
    """Return a transcript as `plain_text`, normalised by a rule.

    Args:
        text: transcript as written.
        rule: `none`; `lower`: lower case, except tags such as `<NOISE>`; `words`: also without punctuation
            and `sounds`; `spoken`: also with numbers and signs as words, except those in `not_said`.
        language: code of the language; `spoken` requires `knows_numbers(language)`, and reads English if it
            is empty.

    >>> normalise("It’s  “well-known”, isn't it? <NOISE>", "words")
    "it's well-known isn't it <NOISE>"
    >>> normalise("It costs $5.", "spoken", "en")
    'it costs five dollars'
    >>> normalise("Una col·lecció: l’art.", "words", "ca")
    "una col·lecció l'art"
    >>> normalise("[laughter] R&amp;D", "spoken")
    'r and d'
    """
    text = plain_text(text)
    if rule == "none":
        return text
    if rule in ("words", "spoken"):
        text = _SOUND.sub(" ", _unescaped(text))
        if rule == "spoken" and knows_numbers(language or "en"):
            text = without_signs(spoken_numbers(text, language or "en"))
        marks = unicodedata.normalize("NFC", _WITHIN.sub("", text.translate(_APOSTROPHES)))
        for quote, mark in _HEBREW.items():
            marks = quote.sub(mark, marks)
        word = _word(_base(language) in _COLON_LANGUAGES)
        return " ".join(_lower(found, language) for found in word.findall(marks))
    return lower(text, language) if "<" not in text else " ".join(_lower(x, language) for x in text.split())


def sounds(text: str) -> list[str]:
    """Return the sounds and remarks of a transcript as written, in brackets or between asterisks.

    In square, curly and angle brackets, they aren't words; in round ones or between asterisks, they may be.

    >>> sounds("[inaudible 00:01:02] well (coughs) <NOISE> *sighs*")
    ['[inaudible 00:01:02]', '(coughs)', '*sighs*']
    """
    return [*_SOUND.findall(text), *_ASIDE.findall(_SOUND.sub(" ", text))]


def is_removed(sound: str) -> bool:
    """Return whether the rules `words` and `spoken` remove one of `sounds`."""
    return _SOUND.fullmatch(sound) is not None


def not_said(text: str, language: str = "") -> list[str]:
    """Return the numbers and signs of a transcript that can't be written as words in a language."""
    return unspoken(_SOUND.sub(" ", _unescaped(plain_text(text))), language or "en")


def _unescaped(text: str) -> str:
    """Return a text with HTML's `&amp;` replaced by `&`."""
    return _ENTITY.sub(lambda found: html.unescape(found[0]), text) if "&" in text else text


@functools.cache
def _word(colons: bool) -> re.Pattern[str]:
    """Return a pattern for a word (letters, marks, digits, with apostrophes or hyphens inside) or <TAG>."""
    # `\w` lacks combining marks, which are the vowels of many scripts, and joiners between letters.
    marks = (chr(code) for code in range(0x20000) if unicodedata.category(chr(code))[0] == "M")
    letters = rf"(?:[^\W_]|[{re.escape(''.join(marks))}\u200c\u200d])+"
    inside = "|".join(["['-]", _MID_LETTER, *([_COLON] if colons else [])])
    return re.compile(rf"<\w+>|{letters}(?:(?:{inside}){letters})*")


def _base(language: str) -> str:
    """Return the code of a language without its region: `pt` for `pt-BR`."""
    return re.split("[-_]", language.lower())[0]


def _lower(word: str, language: str) -> str:
    return word if re.fullmatch(r"<\w+>", word) else lower(word, language)
