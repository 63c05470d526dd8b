"""Phones of reference words, from the model's lexicon, the data's lexicon or g2p; word counts by source."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from asr.console import counted, first_of
from asr.text.cmudict import without_stress
from asr.text.g2p import PHONES, Guess, installed_model
from asr.text.lexicon import Lexicon, Phones
from asr.text.tokenizer import NOISE_WORDS, NON_SPEECH_NOISE, SPOKEN_NOISE, PhoneTokenizer

log = logging.getLogger(__name__)

BESIDE = "lexicon.txt", "references.txt"  # files beside the data
NOTABLE = 0.02  # share of words without pronunciation above which a warning is given


@dataclass
class WordCounts:
    """Number of reference words, without noises, and of those that each source pronounced."""

    words: int = 0
    model: int = 0
    data: int = 0
    g2p: int = 0
    none: int = 0

    def __str__(self) -> str:
        return (
            f"{counted(self.words, 'reference word')}, pronounced by the model's lexicon {self.model:,}, the "
            f"data's {self.data:,}, g2p {self.g2p:,}; without pronunciation {self.none:,}"
        )

    def warn(self, where: str) -> None:
        """Log a warning that begins with `where` if too many words have no pronunciation."""
        warn(where, self.words, self.none, "they are not scored, and phones recognised there are insertions")


def warn(where: str, words: int, without: int, effect: str) -> None:
    """Log a warning with the `effect` if more than 2 % of `words` running words have no pronunciation."""
    if without > NOTABLE * words:
        share = 100 * without / words
        log.warning("%s: %.1f %% of %d words have no pronunciation: %s", where, share, words, effect)


def lexicon_beside(folder: Path) -> Lexicon | None:
    """Return lexicon.txt and references.txt of a prepared folder, merged; None without either."""
    found = [Lexicon.load(path) for name in BESIDE if (path := folder / name).is_file()]
    return reduce(Lexicon.merged, found) if found else None


class ReferencePhones:
    """Converts reference transcripts to the phones of a model.

    A word gets the first pronunciation from the first source that knows it: the model's lexicon, the data's
    lexicon, g2p. Pronunciations with phones that the model lacks are skipped. A word without pronunciation
    becomes SPN, which isn't scored.

    Args:
        tokenizer: tokenizer of the model.
        beside: lexicon of the data.
        guess: g2p model; ignored unless the model's phones are CMUdict's.

    Attributes:
        counts: numbers of words so far, by source.
        unknown: words without pronunciation so far.

    Example:
        >>> tokenizer = PhoneTokenizer(Lexicon({"go": [("G", "OW")], "on": [("AA", "N")]}))
        >>> references = ReferencePhones(tokenizer, Lexicon({"no": [("N", "OW")]}))
        >>> references("no gnu"), references.counts
        (['N', 'OW', 'SPN'], WordCounts(words=2, model=0, data=1, g2p=0, none=1))
    """

    def __init__(
        self, tokenizer: PhoneTokenizer, beside: Lexicon | None = None, guess: Guess | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._lexicon = tokenizer.lexicon
        self._beside = beside or Lexicon({})
        self._symbols = frozenset(tokenizer.symbols)
        speech = set(self._lexicon.phones) - {SPOKEN_NOISE, NON_SPEECH_NOISE}
        self._guess = guess if speech <= set(without_stress(PHONES)) else None
        self._added: dict[str, list[Phones]] = {}  # pronunciations that the model's lexicon lacks
        self.counts = WordCounts()
        self.unknown: Counter[str] = Counter()

    @classmethod
    def of_data(
        cls, tokenizer: PhoneTokenizer, folder: Path, languages: Iterable[str | None], g2p: bool
    ) -> "ReferencePhones":
        """Use lexicon.txt and references.txt of a prepared folder if they exist, and g2p_en if installed.

        Args:
            tokenizer: tokenizer of the model.
            folder: prepared folder.
            languages: languages of the transcripts; g2p_en is used only for English.
            g2p: whether to use g2p_en.
        """
        english = all((language or "en").lower().startswith("en") for language in languages)
        guess = installed_model() if g2p and english else None
        return cls(tokenizer, lexicon_beside(folder), guess)

    def __call__(self, text: str) -> list[str]:
        """Return the phones of a transcript, and count its words by source."""
        return [phone for word in text.split() for phone in self._phones(word)]

    def _phones(self, word: str) -> Phones:
        if word in NOISE_WORDS:
            return self._tokenizer.phones(word)
        self.counts.words += 1
        if word in self._lexicon:
            self.counts.model += 1
            return self._lexicon.first(word)
        if word in self._beside and (phones := self._fitting(self._beside.pronunciations[word])):
            self.counts.data += 1
        elif self._guess and (phones := self._fitting([self._guess(word)])):
            self.counts.g2p += 1
        else:
            self.counts.none += 1
            self.unknown[word] += 1
            return (SPOKEN_NOISE,)
        self._added[word] = [phones]
        return phones

    def _fitting(self, pronunciations: list[Phones]) -> Phones:
        """Return the first pronunciation that the model has all phones of; empty if there is none."""
        return next((phones for phones in pronunciations if self._symbols.issuperset(phones)), ())

    @property
    def digest(self) -> str:
        """Hash of the model's lexicon with the pronunciations that were added to it."""
        return self._lexicon.merged(Lexicon(self._added)).digest if self._added else self._lexicon.digest

    def report(self, manifest: Path) -> None:
        """Print the counts if words are outside the model's lexicon; warn if many have no pronunciation."""
        if self.counts.words > self.counts.model:
            shown = first_of([word for word, _ in self.unknown.most_common(11)])
            print(f"{self.counts}: {shown}" if shown else self.counts)
        self.counts.warn(str(manifest))
