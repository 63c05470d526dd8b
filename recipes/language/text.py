"""Texts for language models: reading, splits, and tokens, which are characters or word pieces."""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asr.errors import UserError
from asr.files import digest
from asr.text.files import read_text
from asr.text.tokenizer import SentencePieceTokenizer

SPLITS = ("train", "dev", "test")
# text8's usual split: the last tenth is held out, half for development and half for tests.
BOUNDS = (0.9, 0.95)
# Files of the splits in a folder: WikiText-2 with rare words as <unk>, or with all words; or other texts.
SPLIT_FILES = (
    ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
    ("wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"),
    ("train.txt", "dev.txt", "test.txt"),
)
TEXT8 = "text8"

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Index 0 is reserved, as in the paper's program and in all tokenizers (CTC's blank).
ALPHABET = "abcdefghijklmnopqrstuvwxyz "
_SPELLED = {ord(str(value)): f" {name} " for value, name in enumerate(DIGITS)}
_SPELLED |= {ord("A") + i: ALPHABET[i] for i in range(26)}
FOREIGN = 0.1  # fraction of letters other than a–z above which a text is refused
LINE = re.compile(r"\S.{0,999}(?=\s|$)|\S{1,1000}")  # pieces are trained and encoded on lines of this length


@dataclass(frozen=True)
class Text:
    """A text as tokens.

    Attributes:
        tokens: tokens of each split, integers from 1.
        vocabulary: number of symbols V; symbol 0 is reserved.
        unit: `character` or `token`.
        name: file or folder.
    """

    tokens: Mapping[str, NDArray[np.integer]]
    vocabulary: int
    unit: str
    name: str

    def describe(self) -> str:
        """Return the source and the sizes of the splits."""
        sizes = ", ".join(f"{len(tokens):,} {split}" for split, tokens in self.tokens.items())
        return f"{self.name}: {self.unit}s {sizes}; {self.vocabulary} symbols"

    def digest(self, split: str) -> str:
        """Return a hash of the tokens of a split."""
        return digest(self.tokens[split].tobytes())


def normalise(text: str) -> str:
    """Return a text in a–z and single spaces, with digits spelled out: Mahoney's rules for text8.

    His script removes markup first. Other characters, such as accented letters, become spaces.

    Example:
        >>> normalise("Chapter 42, «Café»")
        ' chapter four two caf'
    """
    return re.sub("[^a-z]+", " ", f" {text} ".translate(_SPELLED))[:-1]


def load_text(place: Path, kind: str, pieces: int, length: int) -> Text:
    """Read a text and divide it into tokens.

    Args:
        place: see `read_splits`.
        kind: `character` or `sentencepiece`; characters are normalised as in text8.
        pieces: number of word pieces, trained on the training split.
        length: length of a sequence in tokens.

    Raises:
        UserError: see `read_splits`; or a split is too short, has foreign letters, or too few distinct words.
    """
    splits = read_splits(place)
    if kind == "character":
        characters = {split: _characters(text, f"{place}: {split}") for split, text in splits.items()}
        loaded = Text(characters, 1 + len(ALPHABET), "character", str(place))
    else:
        tokenizer = _tokenizer(splits["train"], pieces)
        ids = {split: _pieces(text, tokenizer) for split, text in splits.items()}
        loaded = Text(ids, len(tokenizer), "token", str(place))
    for split, tokens in loaded.tokens.items():
        if len(tokens) <= length:
            raise UserError(
                f"{place}: expected more than recipe.length={length} {loaded.unit}s in {split}, "
                f"found {len(tokens)}"
            )
    return loaded


def read_splits(place: Path) -> dict[str, str]:
    """Return the texts of train, dev and test.

    Args:
        place: a text file, or a folder with `text8`: the first 90 % for training, the next 5 % for
            development, the rest for tests; or a folder with `wiki.{train,valid,test}.{tokens,raw}` or
            `{train,dev,test}.txt`.

    Raises:
        UserError: a file is missing or isn't UTF-8.
    """
    if place.is_dir():
        for names in SPLIT_FILES:
            if (place / names[0]).exists():
                return {split: read_text(place / name) for split, name in zip(SPLITS, names, strict=True)}
        if not (place / TEXT8).exists():
            expected = " or ".join([TEXT8, *(names[0] for names in SPLIT_FILES)])
            raise UserError(f"{place}: expected a folder with {expected}, found none of them")
        place = place / TEXT8
    if not place.exists():
        raise UserError(
            f"recipe.text={place}: expected a text file or a folder, found none (asr prepare language makes "
            "the default one)"
        )
    text = read_text(place)
    first, second = (round(bound * len(text)) for bound in BOUNDS)
    return {"train": text[:first], "dev": text[first:second], "test": text[second:]}


def _characters(text: str, name: str) -> NDArray[np.uint8]:
    letters = {x: n for x in set(text) if x.isalpha() and not x.isascii() and (n := text.count(x))}
    normalised = normalise(text)
    foreign, total = sum(letters.values()), len(normalised) - normalised.count(" ")
    if foreign > FOREIGN * max(total, 1):
        raise UserError(
            f"{name}: expected text in the letters a–z, found {foreign} other letters beside {total}, most "
            f"often {max(letters, key=letters.__getitem__)!r}; use tokenizer.kind=sentencepiece"
        )
    codes = np.frombuffer(normalised.encode(), dtype=np.uint8) - (ord("a") - 1)
    return np.where(codes > 26, np.uint8(27), codes)  # the space wraps around


@functools.lru_cache(maxsize=1)  # a comparison plans several candidates with the same text
def _tokenizer(text: str, pieces: int) -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(_lines(text), pieces)


def _lines(text: str) -> Iterator[str]:
    return (match[0] for match in LINE.finditer(text))


def _pieces(text: str, tokenizer: SentencePieceTokenizer) -> NDArray[np.int32]:
    ids = [tokenizer.encode(line) for line in _lines(text)]
    return np.concatenate([np.array(x, dtype=np.int32) for x in ids]) if ids else np.zeros(0, dtype=np.int32)
