"""Pronunciation lexicons, read from and written to text files."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from asr.errors import UserError
from asr.files import digest
from asr.text.files import read_lines, write_lines

Phones = tuple[str, ...]


@dataclass(frozen=True)
class Lexicon:
    """Pronunciations of each word; the first one is the training target.

    Files are UTF-8 text with one `word PH PH PH` per line; a repeated word adds a pronunciation.

    >>> lexicon = Lexicon({"the": [("DH", "AH"), ("DH", "IY")]})
    >>> lexicon.first("the"), "a" in lexicon, lexicon.phones
    (('DH', 'AH'), False, ['AH', 'DH', 'IY'])
    """

    pronunciations: dict[str, list[Phones]]

    @classmethod
    def load(cls, path: str | Path) -> "Lexicon":
        """Read a lexicon file; raise a `UserError` that names file and line if it is malformed."""
        pronunciations: dict[str, list[Phones]] = {}
        for number, line in read_lines(path):
            word, *said = line.split()
            phones = tuple(said)
            if not phones:
                raise UserError(f"{path}:{number}: expected `word PH PH …`, found {word!r} without phones")
            known = pronunciations.setdefault(word, [])
            if phones not in known:
                known.append(phones)
        if not pronunciations:
            raise UserError(f"{path}: expected a lexicon of `word PH PH …` lines, found no words")
        return cls(pronunciations)

    def merged(self, other: "Lexicon") -> "Lexicon":
        """Return the union of both lexicons; for a shared word, this one's pronunciations come first."""
        pronunciations = {word: list(said) for word, said in self.pronunciations.items()}
        for word, said in other.pronunciations.items():
            known = pronunciations.setdefault(word, [])
            known += [phones for phones in said if phones not in known]
        return Lexicon(pronunciations)

    def save(self, path: str | Path) -> None:
        """Write the canonical form: words sorted, the pronunciations of each word in their given order."""
        write_lines(path, self._canonical_lines())

    @cached_property
    def phones(self) -> list[str]:
        """All distinct phones, sorted."""
        return sorted({phone for said in self.pronunciations.values() for phones in said for phone in phones})

    @cached_property
    def digest(self) -> str:
        """First 12 hex digits of the canonical form's SHA-256; PERs are comparable only if it is the same."""
        return digest(f"{line}\n" for line in self._canonical_lines())

    @cached_property
    def tokenizer_digest(self) -> str:
        """Hash of the state of a phone tokenizer, 12 hex digits."""
        # The state has lists instead of tuples, which JSON writes alike.
        return digest(json.dumps({"kind": "phone", "pronunciations": self.pronunciations}, sort_keys=True))

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
        return [
            f"{word} {' '.join(phones)}"
            for word in sorted(self.pronunciations)
            for phones in self.pronunciations[word]
        ]


def read_words(path: str | Path) -> list[str]:
    """Return the distinct first words of all lines: the words of a lexicon or of a word list.

    Raises:
        UserError: the file is missing, not UTF-8 text, or has no words.
    """
    words = list(dict.fromkeys(line.split()[0] for _, line in read_lines(path)))
    if not words:
        raise UserError(f"{path}: expected a lexicon or a word list, found no words")
    return words
