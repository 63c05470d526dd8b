"""How many reference words are in a search's vocabulary: a closed vocabulary flatters the error rate."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from asr.console import counted
from asr.text.tokenizer import NOISE_WORDS


@dataclass(frozen=True)
class KnownWords:
    """Counts of reference words, without noises, and of those outside the vocabulary of a search.

    Example:
        >>> print(KnownWords.of(["go", "on"], ["go on", "go [noise]"]))
        closed vocabulary: the search knows 2 words, among them all 3 of the references
        >>> print(KnownWords.of(["go", "on"], ["go gnu"]))
        1 of 2 reference words (50.0 %) are outside the 2 words of the search
    """

    vocabulary: int
    words: int
    unknown: int

    @classmethod
    def of(cls, vocabulary: Collection[str], texts: Iterable[str]) -> "KnownWords":
        """Count the words of transcripts; case doesn't matter, as in error rates."""
        known = {word.lower() for word in vocabulary}
        words = [word for text in texts for word in text.split() if word not in NOISE_WORDS]
        return cls(len(vocabulary), len(words), sum(word.lower() not in known for word in words))

    @property
    def closed(self) -> bool:
        """Whether the vocabulary contains all words of the references."""
        return self.words > 0 == self.unknown

    def __str__(self) -> str:
        if self.closed:
            among = f"among them all {self.words:,} of the references"
            return f"closed vocabulary: the search knows {counted(self.vocabulary, 'word')}, {among}"
        share = 100 * self.unknown / max(self.words, 1)
        outside = f"are outside the {counted(self.vocabulary, 'word')} of the search"
        return f"{self.unknown:,} of {counted(self.words, 'reference word')} ({share:.1f} %) {outside}"
