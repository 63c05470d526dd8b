"""The pronunciation lexicon: words and how they are said, from and to a text file."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from asr.errors import UserError
from asr.files import write_text

Phones = tuple[str, ...]


@dataclass(frozen=True)
class Lexicon:
    """Pronunciations of each word; the first one is the training target.

    On disk: UTF-8 text, one `word PH PH PH` per line; a repeated word is a further pronunciation.

    >>> lexicon = Lexicon({"the": [("DH", "AH"), ("DH", "IY")]})
    >>> lexicon.first("the"), "a" in lexicon, lexicon.phones
    (('DH', 'AH'), False, ['AH', 'DH', 'IY'])
    """

    pronunciations: dict[str, list[Phones]]

    @classmethod
    def load(cls, path: str | Path) -> "Lexicon":
        """Read a lexicon file; raise `UserError` naming file and line where it can't be one."""
        path = Path(path)
        pronunciations: dict[str, list[Phones]] = {}
        for number, line in enumerate(_lines(path), start=1):
            fields = line.split()
            if not fields:
                continue
            word, phones = fields[0], tuple(fields[1:])
            if not phones:
                raise UserError(f"{path}:{number}: expected `word PH PH …`, found {word!r} without phones")
            known = pronunciations.setdefault(word, [])
            if phones not in known:
                known.append(phones)
        if not pronunciations:
            raise UserError(f"{path}: expected a lexicon of `word PH PH …` lines, found no word")
        return cls(pronunciations)

    def merged(self, other: "Lexicon") -> "Lexicon":
        """Return a lexicon with the words of both; where both know a word, this one's come first."""
        pronunciations = {word: list(said) for word, said in self.pronunciations.items()}
        for word, said in other.pronunciations.items():
            known = pronunciations.setdefault(word, [])
            known += [phones for phones in said if phones not in known]
        return Lexicon(pronunciations)

    def save(self, path: str | Path) -> None:
        """Write the canonical form: words sorted, each word's pronunciations in their order."""
        write_text(self._canonical(), path)

    @cached_property
    def phones(self) -> list[str]:
        """The distinct phones of all pronunciations, sorted."""
        return sorted({phone for said in self.pronunciations.values() for phones in said for phone in phones})

    @cached_property
    def digest(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical form; error rates of different digests
        do not compare.
        """
        return hashlib.sha256(self._canonical().encode()).hexdigest()[:12]

    def first(self, word: str) -> Phones:
        """The pronunciation used as a training target; `KeyError` for a word outside."""
        return self.pronunciations[word][0]

    def __contains__(self, word: object) -> bool:
        return word in self.pronunciations

    def __len__(self) -> int:
        return len(self.pronunciations)

    def __iter__(self) -> Iterator[str]:
        return iter(self.pronunciations)

    def _canonical(self) -> str:
        return "".join(
            f"{word} {' '.join(phones)}\n"
            for word in sorted(self.pronunciations)
            for phones in self.pronunciations[word]
        )


def read_words(path: str | Path) -> list[str]:
    """Return the first word of every line, each once: the words of a lexicon, or of a plain list.

    Raises:
        UserError: the file is missing, is no UTF-8 text, or has no word.
    """
    words = list(dict.fromkeys(line.split()[0] for line in _lines(Path(path)) if line.strip()))
    if not words:
        raise UserError(f"{path}: expected a lexicon or a list of words, found no word")
    return words


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path}: expected a lexicon, found no such file") from None
    except OSError as error:
        raise UserError(f"{path}: the lexicon can't be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8 text, found other bytes at byte {error.start}") from None
