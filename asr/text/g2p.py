"""Pronunciations of out-of-dictionary words, from the grapheme-to-phoneme model `g2p_en` if installed."""

import re
from collections.abc import Callable

from asr.text.cmudict import without_stress
from asr.text.lexicon import Phones


def installed_model() -> Callable[[str], Phones] | None:
    """Return a function from a word to its phones (CMUdict's 39, without stress), or None if not installed.

    Only letters and apostrophes are read, so `A:ND*` is pronounced as `AND`. A word without letters has no
    phones.
    """
    try:
        from g2p_en import G2p
    except ImportError:
        return None
    model = G2p()

    def pronounce(word: str) -> Phones:
        letters = re.sub(r"[^a-z']", "", word.lower())
        phones = model.predict(letters) if re.search("[a-z]", letters) else []
        return without_stress(phone for phone in phones if phone.rstrip("012").isalpha())

    return pronounce
