"""Scripts without spaces between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan."""

import re
import unicodedata
from collections.abc import Iterator

_LETTER = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\uff01-\uff0f\uff66-\uff9f\U00020000-\U0003ffff]"
)


def is_unspaced(text: str) -> bool:
    """Return whether a text has letters of such a script.

    >>> is_unspaced("今天"), is_unspaced("today")
    (True, False)
    """
    return _LETTER.search(text) is not None


def units(text: str) -> Iterator[str]:
    """Yield the parts of a text that a line break must not divide: letters of such scripts, and other words.

    >>> list(units("今天 12 號"))
    ['今', '天', ' ', '12', ' ', '號']
    """
    unit = ""
    for character in text:
        mark = unicodedata.category(character)[0] == "M"  # part of the letter before it
        letters = bool(_LETTER.match(unit) or _LETTER.match(character)) and not mark
        if unit and (letters or character.isspace() != unit.isspace()):
            yield unit
            unit = ""
        unit += " " if character.isspace() else character
    if unit:
        yield unit
