"""The lexicon of WSJ: CMUdict in upper case, spoken punctuation, and words pronounced by a G2P model."""

from collections.abc import Callable, Iterable

from asr.text.cmudict import cmudict_entries, without_stress
from asr.text.lexicon import Lexicon, Phones
from asr.text.tokenizer import NOISE_WORD

from .transcripts import PUNCTUATION

# Words in the names of punctuation: `"DOUBLE-QUOTE`, `)END-THE-PAREN`, `.FULL-STOP`.
NAMES = {
    "AMPERSAND", "BEGIN", "BRACE", "CLOSE", "CLOSED", "COLON", "COMMA", "DASH", "DECIMAL", "DOT",
    "DOUBLE", "ELLIPSIS", "END", "EXCLAMATION", "FULL", "HASH", "HYPHEN", "IN", "INNER", "LEFT", "MARK",
    "OF", "OPEN", "PAREN", "PARENS", "PARENTHESES", "PARENTHESIS", "PERCENT", "PERIOD", "PLUS", "POINT",
    "POUND", "QUESTION", "QUOTATION", "QUOTE", "QUOTES", "RIGHT", "SEMI", "SEMICOLON", "SHARP", "SIGN",
    "SINGLE", "SLASH", "STOP", "THE", "UN", "UNQUOTE",
}  # fmt: skip
# Pronunciations that CMUdict lacks.
ADDED: dict[str, list[Phones]] = {
    "ELLIPSIS": [("IH", "L", "IH", "P", "S", "IH", "S")],
    "PAREN": [("P", "ER", "EH", "N")],
    "PARENS": [("P", "ER", "EH", "N", "Z")],
    "SEMICOLON": [("S", "EH", "M", "IY", "K", "OW", "L", "AH", "N")],
    "UN": [("AH", "N")],
}

Guess = Callable[[str], Phones]


def build_lexicon(words: Iterable[str], guess: Guess | None = None) -> tuple[Lexicon, list[str], list[str]]:
    """Return the pronunciations of all of CMUdict and of `words`.

    Args:
        words: words of the training transcripts.
        guess: grapheme-to-phoneme model for words without an entry; None: leave them out.

    Returns:
        The lexicon, without stress; the words that `guess` pronounced; the words without a pronunciation,
        trained as SPN. Both lists are sorted.
    """
    known: dict[str, list[Phones]] = {
        word.upper(): list(dict.fromkeys(without_stress(phones) for phones in said))
        for word, said in cmudict_entries().items()
    }
    guessed, unknown = [], []
    for word in sorted(set(words) - {NOISE_WORD}):
        if word in known:
            continue
        if said := punctuation(word, known):
            known[word] = said
        elif guess and (phones := guess(word)):
            known[word] = [phones]
            guessed.append(word)
        else:
            unknown.append(word)
    return Lexicon(known), guessed, unknown


def punctuation(word: str, known: dict[str, list[Phones]]) -> list[Phones]:
    """Return the pronunciation of spoken punctuation, from its name; empty for other words.

    >>> punctuation(",COMMA", {"COMMA": [("K", "AA", "M", "AH")]})
    [('K', 'AA', 'M', 'AH')]
    """
    match = PUNCTUATION.fullmatch(word)
    names = match[1].replace("_", "-").split("-") if match else []
    if not names or not NAMES.issuperset(names):
        return []
    parts = [(known.get(name) or ADDED[name])[0] for name in names]
    return [tuple(phone for part in parts for phone in part)]
