"""Interpolated modified Kneser–Ney estimation of n-gram models, in memory.

Chen and Goodman, *An Empirical Study of Smoothing Techniques for Language Modeling*, 1998, section 4.1.6,
with the conventions of KenLM's `lmplz` (Heafield et al., *Scalable Modified Kneser-Ney Language Model
Estimation*, 2013). The models equal those of lmplz up to rounding.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from asr.errors import UserError

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
SPECIAL = (UNKNOWN, BEGIN, END)
FALLBACK = (0.5, 1.0, 1.5)  # discounts for texts too small to estimate them, as in lmplz

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class NgramTable:
    """All n-grams of one order; row r is `context[r]`, a row of the lower-order table, followed by `word[r]`.

    Attributes:
        context: row of the n-gram without its last word in the lower-order table; zeros for unigrams.
        suffix: row of the n-gram without its first word in the lower-order table; zeros for unigrams.
        word: index of the last word in the vocabulary.
        count: occurrences in the text.
        starts: whether the n-gram starts with `<s>`.
        discounts: D1, D2 and D3+ (Chen and Goodman, eq. 26).
        estimated: whether `discounts` were estimated; otherwise they are `FALLBACK`.
        probability: probability interpolated with the lower orders.
        backoff: back-off weight of the n-gram as a context; 1 if it is not a context.
    """

    context: Ints
    suffix: Ints
    word: Ints
    count: Ints
    starts: NDArray[np.bool_]
    discounts: tuple[float, float, float] = FALLBACK
    estimated: bool = False
    probability: Floats = field(default_factory=lambda: np.empty(0))
    backoff: Floats = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return len(self.word)


@dataclass(frozen=True)
class NgramEstimate:
    """A model; `tables[n - 1]` holds the n-grams, `vocabulary` starts with `<unk>`, `<s>`, `</s>`."""

    vocabulary: list[str]
    tables: list[NgramTable]
    sentences: int
    tokens: int  # words in the text, without sentence boundaries
    unknown: int  # words in the text that are outside the given vocabulary

    def ngrams(self, order: int) -> list[tuple[str, ...]]:
        """Return all n-grams of an order as words, in the order of the table's rows."""
        rows: list[tuple[str, ...]] = [(word,) for word in self.vocabulary]
        for table in self.tables[1:order]:
            pairs = zip(table.context.tolist(), table.word.tolist(), strict=True)
            rows = [(*rows[context], self.vocabulary[word]) for context, word in pairs]
        return rows


def estimate(
    sentences: Iterable[Sequence[str]], order: int = 3, vocabulary: Iterable[str] | None = None
) -> NgramEstimate:
    """Estimate a model.

    Memory is about 60 bytes per word of text at order 3.

    Args:
        sentences: words of each sentence, without `<s>` and `</s>`; empty sentences are skipped.
        order: length of the longest n-grams, 2 … 6; limited by the longest sentence with its boundaries.
        vocabulary: all words of the model, whether or not the text has them; other words count as `<unk>`.
            None: the words of the text.

    Raises:
        UserError: there is no text, the order is out of range, or a word is `<s>` or `</s>`.

    Example:
        >>> model = estimate([["a", "b"], ["a"]], order=2)
        >>> model.vocabulary
        ['<unk>', '<s>', '</s>', 'a', 'b']
        >>> round(float(model.tables[0].probability.sum()), 12)  # <s> is never predicted
        1.0
    """
    if not 2 <= order <= 6:
        raise UserError(f"order={order}: expected 2 … 6, the orders that KenLM reads")
    words, offsets, names, unknown = _index(sentences, vocabulary)
    if not len(words):
        raise UserError("expected text to estimate a language model from, found no sentence with a word")
    tables = _count(words, offsets, len(names), order)
    for level, table in enumerate(tables):
        adjusted = _adjusted_counts(table, tables[level + 1] if level + 1 < len(tables) else None)
        if level == 0:
            adjusted[SPECIAL.index(BEGIN)] = 0  # never predicted
        _smooth(table, adjusted, tables[level - 1] if level else None)
    tables[-1].backoff = np.ones(len(tables[-1]))
    count = int((words == SPECIAL.index(BEGIN)).sum())
    return NgramEstimate(names, tables, count, len(words) - 2 * count, unknown)


def _index(
    sentences: Iterable[Sequence[str]], vocabulary: Iterable[str] | None
) -> tuple[Ints, Ints, list[str], int]:
    """Index the words of a text.

    Returns:
        The word indices with `<s>` and `</s>`, the position of each in its sentence, the vocabulary, and the
        number of unknown words.
    """
    given = None if vocabulary is None else sorted(set(vocabulary) - set(SPECIAL))
    index = {word: number for number, word in enumerate([*SPECIAL, *(given or [])])}
    words: list[int] = []
    offsets: list[int] = []
    unknown = 0
    for sentence in sentences:
        if not sentence:
            continue
        ids = []
        for word in sentence:
            number = index.setdefault(word, len(index)) if given is None else index.get(word, 0)
            unknown += number == 0
            ids.append(number)
        if 1 in ids or 2 in ids:
            raise UserError(f"the text has {BEGIN} or {END} as a word: {' '.join(sentence)[:80]!r}")
        words += [1, *ids, 2]
        offsets += range(len(ids) + 2)
    if given is not None:
        return np.array(words, dtype=np.int64), np.array(offsets, dtype=np.int64), list(index), unknown
    # Sorted, so that the order of the sentences doesn't change the model.
    names = [*SPECIAL, *sorted(list(index)[3:])]
    place = {word: number for number, word in enumerate(names)}
    moved = np.array([place[word] for word in index], dtype=np.int64)
    return moved[np.array(words, dtype=np.int64)], np.array(offsets, dtype=np.int64), names, unknown


def _count(words: Ints, offsets: Ints, size: int, order: int) -> list[NgramTable]:
    """Count the n-grams of every order."""
    zeros = np.zeros(size, dtype=np.int64)
    counts = np.bincount(words, minlength=size)
    tables = [NgramTable(zeros, zeros, np.arange(size), counts, np.arange(size) == SPECIAL.index(BEGIN))]
    row = words  # row in the last table of the n-gram ending at each position
    for length in range(2, order + 1):
        ends = np.flatnonzero(offsets >= length - 1)
        if not len(ends):
            break
        keys, first, of_end, count = np.unique(
            row[ends - 1] * size + words[ends], return_index=True, return_inverse=True, return_counts=True
        )
        context = keys // size
        tables.append(NgramTable(context, row[ends[first]], keys % size, count, tables[-1].starts[context]))
        row = np.full(len(words), -1)
        row[ends] = of_end
    return tables


def _adjusted_counts(table: NgramTable, longer: NgramTable | None) -> Ints:
    """Return the number of distinct words that precede each n-gram; occurrences if nothing can precede it."""
    if longer is None:
        return table.count.copy()
    return np.where(table.starts, table.count, np.bincount(longer.suffix, minlength=len(table)))


def _smooth(table: NgramTable, adjusted: Ints, shorter: NgramTable | None) -> None:
    """Fill in the discounts and probabilities, and the back-off weights of the lower order."""
    table.discounts, table.estimated = _discounts(adjusted)
    discount = np.array((0.0, *table.discounts))[np.minimum(adjusted, 3)]
    contexts = len(shorter) if shorter else 1
    total = np.bincount(table.context, adjusted, minlength=contexts)
    freed = np.bincount(table.context, discount, minlength=contexts)
    weight = np.divide(freed, total, out=np.ones(contexts), where=total > 0)
    discounted = (adjusted - discount) / total[table.context]
    if shorter is None:
        # Unigrams are interpolated with the uniform distribution over all words but <s>.
        table.probability = discounted + weight[0] / (len(table) - 1)
        table.probability[SPECIAL.index(BEGIN)] = 0.0
    else:
        # Interpolation lets asr/losses/label_ngram.py factor the arcs of all histories.
        table.probability = discounted + weight[table.context] * shorter.probability[table.suffix]
        shorter.backoff = weight


def _discounts(adjusted: Ints) -> tuple[tuple[float, float, float], bool]:
    """Return D1, D2 and D3+ (Chen and Goodman 1998, eq. 26), and whether they could be estimated."""
    n = [int((adjusted == count).sum()) for count in range(5)]
    if min(n[1:4]) == 0:
        return FALLBACK, False
    y = n[1] / (n[1] + 2 * n[2])
    d1, d2, d3 = (count - (count + 1) * y * n[count + 1] / n[count] for count in (1, 2, 3))
    if not (0 < d1 <= 1 and 0 < d2 <= 2 and 0 < d3 <= 3):  # a discount of 0 gives a back-off weight of 0
        return FALLBACK, False
    return (d1, d2, d3), True
