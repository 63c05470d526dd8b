"""Hotwords: phrases that a search prefers, e.g. names, read from a file and spelled in a model's labels."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from asr.errors import UserError
from asr.text.cmudict import without_stress
from asr.text.files import read_lines
from asr.text.g2p import LETTERS, PHONES, Guess
from asr.text.lexicon import Lexicon, Phones
from asr.text.normalise import plain_text
from asr.text.tokenizer import NON_SPEECH_NOISE, SPOKEN_NOISE, PhoneTokenizer, Tokenizer, case_of

LONGEST = 100  # maximum number of letters in a phrase
LARGEST_BOOST = 1000.0
BOOST = re.compile(r"(.*?)(?:\t\s*|\s:)(\S+)")  # `phrase<TAB>boost`, or sherpa-onnx's `phrase :boost`


@dataclass(frozen=True)
class Hotword:
    """A phrase to prefer.

    Attributes:
        words: words of the phrase.
        boost: reward per letter or phone, natural log.
        place: file and line, for messages.
    """

    words: tuple[str, ...]
    boost: float
    place: str

    def __str__(self) -> str:
        return f"{self.place}: {' '.join(self.words)!r}"


def read_hotwords(path: str, boost: float = 0.0) -> list[Hotword]:
    """Return the phrases of a file.

    Args:
        path: text file with a phrase per line, optionally with its boost: `phrase<TAB>2` or `phrase :2`.
        boost: boost of phrases without one.

    Raises:
        UserError: the file isn't UTF-8 text or has no phrases, a boost isn't a number in 0 … 1000, or a
            phrase has more than 100 letters.
    """
    found = []
    for number, line in read_lines(path):
        place = f"{path}:{number}"
        text, own = line, boost
        if given := BOOST.fullmatch(line.strip()):
            text, own = given[1], _boost(given[2], place)
        words = tuple(plain_text(text).split())
        if not words:
            raise UserError(f"{place}: expected a phrase, found {line.strip()!r}")
        if len("".join(words)) > LONGEST:
            size = len("".join(words))
            raise UserError(f"{place}: expected a phrase of at most {LONGEST} letters, found {size}")
        found.append(Hotword(words, own, place))
    if not found:
        raise UserError(f"{path}: expected a phrase per line, found none")
    return found


def _boost(text: str, place: str) -> float:
    try:
        boost = float(text)
    except ValueError:
        boost = math.nan
    if not 0 <= boost <= LARGEST_BOOST:
        raise UserError(f"{place}: expected a boost of 0 … {LARGEST_BOOST:g}, found {text!r}")
    return boost


def in_words_of(hotwords: Sequence[Hotword], lexicon: Lexicon) -> list[Hotword]:
    """Return the phrases in the letter case of the lexicon, if all its words have the same."""
    change = case_of(lexicon)
    return [replace(x, words=tuple(map(change, x.words))) for x in hotwords]


def writable(hotwords: Sequence[Hotword], tokenizer: Tokenizer, words: Iterable[str] = ()) -> list[Hotword]:
    """Return the phrases in the letters of a model of characters or pieces, changing their case if necessary.

    Args:
        hotwords: phrases.
        tokenizer: tokenizer of the model.
        words: words of the search. If all have the same letter case, the phrases take it where the model can
            write it: `Berlin` beside `berlin` would be a second word.

    Raises:
        UserError: the model lacks letters of a phrase.
    """
    changes = (case_of(words), str, str.lower, str.upper)
    found = []
    for hotword in hotwords:
        for change in changes:
            written = tuple(map(change, hotword.words))
            if all(tokenizer.encode(word) and not tokenizer.oov(word) for word in written):
                found.append(replace(hotword, words=written))
                break
        else:
            lacking = [x for x in dict.fromkeys("".join(hotword.words)) if tokenizer.oov(x)]
            lacking = [x for x in lacking if tokenizer.oov(x.lower()) and tokenizer.oov(x.upper())] or lacking
            shown = " ".join(repr(x)[1:-1] for x in lacking or hotword.words)
            raise UserError(f"{hotword}: the {tokenizer.unit}s of the model can't write {shown}")
    return found


def pronunciations(
    hotwords: Sequence[Hotword], lexicon: Lexicon, tokenizer: PhoneTokenizer, guess: Guess | None
) -> Lexicon:
    """Return the pronunciations of all words of the phrases, from the lexicon or else from g2p.

    Args:
        hotwords: phrases in the letter case of the lexicon.
        lexicon: lexicon of the search.
        tokenizer: tokenizer of the model, which has the phones.
        guess: g2p, ignored unless the model's phones are CMUdict's.

    Raises:
        UserError: a word has no pronunciation.
    """
    speech = set(tokenizer.symbols[1:]) - {SPOKEN_NOISE, NON_SPEECH_NOISE}
    if not speech <= set(without_stress(PHONES)):
        guess = None
    found: dict[str, list[Phones]] = {}
    for hotword in hotwords:
        for word in hotword.words:
            said = lexicon.pronunciations.get(word)
            found[word] = said or [_guessed(word, hotword, guess, speech)]
    return Lexicon(found)


def _guessed(word: str, hotword: Hotword, guess: Guess | None, known: set[str]) -> Phones:
    if guess is None:
        raise UserError(
            f"{hotword}: {word!r} has no pronunciation in the lexicon, and g2p_en isn't installed or the "
            "model's phones aren't CMUdict's"
        )
    if foreign := [x for x in dict.fromkeys(word) if x.isalnum() and x.lower() not in LETTERS]:
        letters = " ".join(foreign)
        raise UserError(f"{hotword}: {word!r} isn't in the lexicon, and g2p_en can't read {letters}")
    phones = guess(word)
    if not phones or not known.issuperset(phones):
        raise UserError(
            f"{hotword}: expected phones of the model for {word!r}, found {' '.join(phones) or 'none'}"
        )
    return phones
