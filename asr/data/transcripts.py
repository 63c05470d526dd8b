"""Transcripts as word indices, so that work on each distinct word is done once."""

from array import array
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

CHUNK = 10_000  # transcripts unpacked together: enough for NumPy's speed, little memory beside the manifest


class Words(dict[str, int]):
    """Number of each word, in the order of first access."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


class Transcripts:
    """Transcripts of a manifest, with single spaces between words; an empty text means no transcript.

    Attributes:
        words: number of each distinct word.
        numbers: numbers of the words of all transcripts, in order.
        ends: a zero, then the index in `numbers` at which each transcript ends.
    """

    def __init__(self) -> None:
        self.words = Words()
        self.numbers = array("i")
        self.ends = array("q", [0])

    def append(self, text: str) -> None:
        """Add a transcript; white space between words becomes a single space."""
        words = self.words
        self.numbers.fromlist([words[word] for word in text.split()])
        self.ends.append(len(self.numbers))

    def extend(self, other: "Transcripts") -> None:
        """Add the transcripts of another manifest, renumbering its words."""
        numbers = np.array([self.words[word] for word in other.words], dtype=np.int32)
        self.ends.frombytes((np.asarray(other.ends)[1:] + len(self.numbers)).tobytes())
        self.numbers.frombytes(numbers[np.asarray(other.numbers)].tobytes())


class Texts:
    """Some of the transcripts, assembled from their words in each iteration.

    Args:
        transcripts: all transcripts.
        rows: [texts] numbers of the transcripts to yield.

    Example:
        >>> transcripts = Transcripts()
        >>> for text in ["so it goes", "", "it is so"]:
        ...     transcripts.append(text)
        >>> texts = Texts(transcripts, np.array([2, 0]))
        >>> list(texts), texts.counts()["so"]
        (['it is so', 'so it goes'], 2)
    """

    def __init__(self, transcripts: Transcripts, rows: NDArray[np.int64]) -> None:
        self._transcripts, self._rows = transcripts, rows

    def __iter__(self) -> Iterator[str]:
        words, numbers, ends = list(self.words), self._transcripts.numbers, self._transcripts.ends
        for row in self._rows.tolist():
            yield " ".join([words[number] for number in numbers[ends[row] : ends[row + 1]]])

    @property
    def words(self) -> Words:
        """Number of each distinct word in all transcripts, not only in these."""
        return self._transcripts.words

    def counts(self) -> Counter[str]:
        """Return how often each word occurs."""
        counts = np.zeros(len(self.words), dtype=np.int64)
        for numbers, _ in self.chunks():
            counts += np.bincount(numbers, minlength=len(counts))
        return Counter({word: n for word, n in zip(self.words, counts.tolist(), strict=True) if n})

    def chunks(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """Yield, for some transcripts at a time, their joined word numbers and how many words each has."""
        numbers, ends = np.asarray(self._transcripts.numbers), np.asarray(self._transcripts.ends)
        for start in range(0, len(self._rows), CHUNK):
            rows = self._rows[start : start + CHUNK]
            lengths = ends[rows + 1] - ends[rows]
            shifts = ends[rows + 1] - np.cumsum(lengths)
            yield numbers[np.arange(lengths.sum()) + np.repeat(shifts, lengths)], lengths
