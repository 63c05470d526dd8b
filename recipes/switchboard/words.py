"""Map words of the MS98 transcripts, with their markup, to training text."""

import re

NOISES = ("[noise]", "[vocalized-noise]", "[laughter]")
COMBINED = {"[vocalized-laughter]": "[laughter]", "[noise]-[laughter]": "[noise] [laughter]"}
DROPPED = ("[silence]", "<b_aside>", "<e_aside>")
MARKUP = set("[]{}<>/")
PLAIN_SLASH = re.compile(r"[\w'-]+/[\w'-]+")  # 20/20, and/or

# Applied in order to the lower-case word.
RULES: list[tuple[re.Pattern[str], str]] = [
    # said while laughing: [laughter-story] → story
    (re.compile(r"^(-?)\[laughter-(.+)\](-?)$"), r"\1\2\3"),
    # said differently than meant: [it'n/isn't] → it'n, [lem[guini]-/linguini] → lem[guini]-
    (re.compile(r"^\[(.+)/.+\](-?)$"), r"\1\2"),
    # the beginning is missing: -[an]y → -y
    (re.compile(r"^-?\[[^][]+\](.+)$"), r"-\1"),
    # the end is missing: ab[solute]- → ab-
    (re.compile(r"^(.+)\[[^][]+\]-?$"), r"\1-"),
    # anything else in brackets at the end: ex[specially]-/especially] → ex
    (re.compile(r"^([^][]+)\[.+\]$"), r"\1"),
    # coinages: {yuppiedom} → yuppiedom
    (re.compile(r"^\{(.+)\}$"), r"\1"),
    # the middle is missing: ammu[n]it- → ammu-it-
    (re.compile(r"([a-z'])\[[^][]+\]([a-z'])"), r"\1-\2"),
    # pronunciation variants: them_1 → them, them_1's → them's
    (re.compile(r"_\d"), ""),
]


def map_word(word: str) -> str | None:
    """Return the training text for a word, two noises if they are joined; None for silence and asides.

    >>> [map_word(word) for word in ["[laughter-yeah]", "ab[solute]-", "[noise]", "[SILENCE]"]]
    ['yeah', 'ab-', '[noise]', None]

    Raises:
        ValueError: the markup is unknown.
    """
    mapped = word.lower()
    if mapped in DROPPED:
        return None
    if mapped in NOISES:
        return mapped
    if mapped in COMBINED:
        return COMBINED[mapped]
    if PLAIN_SLASH.fullmatch(mapped):
        return mapped
    if not MARKUP.isdisjoint(mapped) or "_" in mapped:
        for pattern, replacement in RULES:
            mapped = pattern.sub(replacement, mapped)
        if not mapped.strip("-") or not MARKUP.isdisjoint(mapped):
            raise ValueError(f"expected a word, a noise or known markup, found {word!r}")
    return mapped
