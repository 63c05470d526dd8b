"""Words of the MS98 transcripts: what their markup means for training."""

import re

NOISES = ("[noise]", "[vocalized-noise]", "[laughter]")
DROPPED = ("[silence]", "<b_aside>", "<e_aside>")
MARKUP = set("[]{}<>/")

# Applied one after the other to a word in lower case.
RULES: list[tuple[re.Pattern[str], str]] = [
    # said while laughing: [laughter-story] → story
    (re.compile(r"^(-?)\[laughter-(.+)\](-?)$"), r"\1\2\3"),
    # said otherwise than meant: [it'n/isn't] → it'n, [lem[guini]-/linguini] → lem[guini]-
    (re.compile(r"^\[(.+)/.+\](-?)$"), r"\1\2"),
    # the beginning is missing: -[an]y → -y
    (re.compile(r"^-?\[[^][]+\](.+)$"), r"-\1"),
    # the end is missing: ab[solute]- → ab-
    (re.compile(r"^(.+)\[[^][]+\]-?$"), r"\1-"),
    # anything else in brackets at the end: ex[specially]-/especially] → ex
    (re.compile(r"^([^][]+)\[.+\]$"), r"\1"),
    # no word of the dictionary: {yuppiedom} → yuppiedom
    (re.compile(r"^\{(.+)\}$"), r"\1"),
    # the middle is missing: ammu[n]it- → ammu-it-
    (re.compile(r"([a-z'])\[[^][]+\]([a-z'])"), r"\1-\2"),
    # the number of a pronunciation: them_1 → them, them_1's → them's
    (re.compile(r"_\d"), ""),
]


def map_word(word: str) -> str | None:
    """Return a word of a transcript as it is trained on; None where nothing is to be heard.

    >>> [map_word(word) for word in ["[laughter-yeah]", "ab[solute]-", "[noise]", "[SILENCE]"]]
    ['yeah', 'ab-', '[noise]', None]

    Raises:
        ValueError: markup that no rule knows.
    """
    mapped = word.lower()
    if mapped in DROPPED:
        return None
    if mapped in NOISES:
        return mapped
    if not MARKUP.isdisjoint(mapped) or "_" in mapped:
        for pattern, replacement in RULES:
            mapped = pattern.sub(replacement, mapped)
        if not mapped.strip("-") or not MARKUP.isdisjoint(mapped):
            raise ValueError(f"expected a word, a noise or known markup, found {word!r}")
    return mapped


def is_noise(word: str) -> bool:
    """Whether a word of a mapped transcript is no word."""
    return word in NOISES
