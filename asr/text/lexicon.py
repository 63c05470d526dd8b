"""Pronunciation lexicons, read from and written to text files."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import digest
from asr.text.files import read_lines, write_lines

Phones = tuple[str, ...]
DECIMAL = re.compile(r"\d*\.\d+(?:[eE][-+]?\d+)?|\d+[eE]-\d+")
NUMBER = re.compile(rf"{DECIMAL.pattern}|\d+")
FIRST = frozenset(".0123456789")
VARIANT = re.compile(r"(?<=.)\(\d+\)$")
INVENTORY = "# phones: "


@dataclass(frozen=True)
class Lexicon:
    """Pronunciations of each word; the first one is the training target.

    Files are UTF-8 text with one `word PH PH PH` per line; a repeated word adds a pronunciation. If the words
    don't contain all phones of the language, a first line `# phones: AA AE …` names them.

    >>> lexicon = Lexicon({"the": [("DH", "AH"), ("DH", "IY")]})
    >>> lexicon.first("the"), "a" in lexicon, lexicon.phones
    (('DH', 'AH'), False, ['AH', 'DH', 'IY'])
    """

    pronunciations: dict[str, list[Phones]]
    inventory: Phones = ()  # phones of the language, whether or not a word contains them

    @classmethod
    def load(cls, path: str | Path) -> "Lexicon":
        """Read a lexicon file; raise a `UserError` that names file and line if it is malformed."""
        pronunciations: dict[str, list[Phones]] = {}
        lines = list(read_lines(path))
        for number, word, phones in _parsed(lines, path):
            if not phones:
                raise UserError(f"{path}:{number}: expected `word PH PH …`, found {word!r} without phones")
            known = pronunciations.setdefault(word, [])
            if phones not in known:
                known.append(phones)
        if not pronunciations:
            raise UserError(f"{path}: expected a lexicon of `word PH PH …` lines, found no words")
        first = lines[0][1]
        inventory = first.removeprefix(INVENTORY).split() if first.startswith(INVENTORY) else ()
        return cls(pronunciations, tuple(inventory))

    def of(self, words: Iterable[str]) -> "Lexicon":
        """Return a lexicon of the known ones among `words`, sorted, with the same phones.

        An unknown word gets the pronunciations of a word that differs only in case, if there is one.
        """
        said = {word: self._said(word) for word in sorted(set(words))}
        found = {word: pronunciations for word, pronunciations in said.items() if pronunciations}
        return Lexicon(found, tuple(self.phones))

    def _said(self, word: str) -> list[Phones] | None:
        return self.pronunciations.get(word) or self._in_lower.get(word.lower())

    @cached_property
    def _in_lower(self) -> dict[str, list[Phones]]:
        return {word.lower(): said for word, said in reversed(self.pronunciations.items())}

    def merged(self, other: "Lexicon") -> "Lexicon":
        """Return the union of both lexicons; for a shared word, this one's pronunciations come first."""
        pronunciations = {word: list(said) for word, said in self.pronunciations.items()}
        for word, said in other.pronunciations.items():
            known = pronunciations.setdefault(word, [])
            known += [phones for phones in said if phones not in known]
        return Lexicon(pronunciations, tuple(dict.fromkeys(self.inventory + other.inventory)))

    def save(self, path: str | Path) -> None:
        """Write the canonical form: sorted words, each with its pronunciations in their given order."""
        write_lines(path, self._canonical_lines())

    @cached_property
    def phones(self) -> list[str]:
        """All distinct phones of words and inventory, sorted."""
        return sorted(self._spoken.union(self.inventory))

    @cached_property
    def unspoken(self) -> list[str]:
        """Phones of the inventory that no word contains, sorted."""
        return sorted(set(self.inventory) - self._spoken)

    @cached_property
    def _spoken(self) -> set[str]:
        return {phone for said in self.pronunciations.values() for phones in said for phone in phones}

    @cached_property
    def digest(self) -> str:
        """First 12 hex digits of the canonical form's SHA-256; only equal ones make PERs comparable."""
        return digest(f"{line}\n" for line in self._canonical_lines())

    @cached_property
    def tokenizer_digest(self) -> str:
        """Hash of the state of a phone tokenizer, 12 hex digits."""
        return digest(json.dumps(self.tokenizer_state(), sort_keys=True))

    def tokenizer_state(self) -> dict[str, Any]:
        """Return the state of a phone tokenizer: plain data."""
        pronunciations = {
            word: [list(phones) for phones in said] for word, said in self.pronunciations.items()
        }
        state: dict[str, Any] = {"kind": "phone", "pronunciations": pronunciations}
        return state | ({"unspoken": self.unspoken} if self.unspoken else {})

    def first(self, word: str) -> Phones:
        """Return the pronunciation used as training target; raise `KeyError` for an unknown word."""
        return self.pronunciations[word][0]

    def __contains__(self, word: object) -> bool:
        return word in self.pronunciations

    def __len__(self) -> int:
        return len(self.pronunciations)

    def __iter__(self) -> Iterator[str]:
        return iter(self.pronunciations)

    def _canonical_lines(self) -> list[str]:
        head = [INVENTORY + " ".join(self.phones)] if self.unspoken else []
        return head + [
            f"{word} {' '.join(phones)}"
            for word in sorted(self.pronunciations)
            for phones in self.pronunciations[word]
        ]


def read_pronunciations(path: str | Path) -> list[tuple[int, str, Phones]]:
    """Return (line number, word, phones) for every line of a lexicon; phones may be empty.

    Probabilities between word and phones, as in Kaldi's lexiconp.txt and the dictionaries of the Montreal
    Forced Aligner, are skipped; so are comments, after `;;` or `#`. `word(2)` is another pronunciation.

    Raises:
        UserError: the file is missing or not UTF-8 text, or a decimal number is among the phones.
    """
    return _parsed(read_lines(path), path)


def _parsed(lines: Iterable[tuple[int, str]], path: str | Path) -> list[tuple[int, str, Phones]]:
    rows = []
    for number, line in lines:
        word, *rest = line.split()
        if word[:2] != ";;":
            rows.append((number, VARIANT.sub("", word) if word[-1] == ")" else word, rest))
    # X-SAMPA has the phones 1 and 2; but a column with decimals contains probabilities, even if it has a `1`.
    numbers = [_leading(rest, NUMBER) if rest and rest[0][0] in FIRST else 0 for *_, rest in rows]
    counted = zip(numbers, rows, strict=True)
    columns = max((n for n, (*_, rest) in counted if _leading(rest[:n], DECIMAL)), default=0)
    known, hashed = [], []
    for n, (number, word, rest) in zip(numbers, rows, strict=True):
        said = rest[min(columns, n) :]
        whole = " ".join(said)
        if "#" in whole:
            said = re.sub(r"(?:^| )#.*", "", whole).split()
        if "." in whole and (wrong := next(filter(DECIMAL.fullmatch, said), "")):
            raise UserError(f"{path}:{number}: expected phones after {word!r}, found the number {wrong!r}")
        if word[0] == "#" and (rest or not word.strip("#")):
            hashed.append((number, word, tuple(said)))
        else:
            known.append((number, word, tuple(said)))
    # `# my words` is a comment, but CMUdict contains the word `#HASH-MARK`, and a word list may have `#one`.
    phones = {phone for *_, said in known for phone in said} if hashed else set()
    words = [x for x in hashed if x[2] and phones.issuperset(x[2])]
    return sorted([*known, *words]) if words else known


def _leading(tokens: list[str], pattern: re.Pattern[str]) -> int:
    """Return the number of tokens at the beginning that match a pattern."""
    return next((at for at, token in enumerate(tokens) if not pattern.fullmatch(token)), len(tokens))


def read_words(path: str | Path) -> list[str]:
    """Return the distinct first words of all lines: the words of a lexicon or of a word list.

    Raises:
        UserError: the file is missing, not UTF-8 text, or has no words.
    """
    words = list(dict.fromkeys(word for _, word, _ in read_pronunciations(path)))
    if not words:
        raise UserError(f"{path}: expected a lexicon or a word list, found no words")
    return words
