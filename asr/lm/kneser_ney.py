"""Interpolated modified Kneser–Ney estimation of n-gram models, in memory.

Chen and Goodman, *An Empirical Study of Smoothing Techniques for Language Modeling*, 1998, section 4.1.6,
with the conventions of KenLM's `lmplz` (Heafield et al., *Scalable Modified Kneser-Ney Language Model
Estimation*, 2013), whose models these equal to the rounding of the numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from asr.errors import UserError

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
SPECIAL = (UNKNOWN, BEGIN, END)
FALLBACK = (0.5, 1.0, 1.5)  # discounts where the text has too few n-grams to estimate them, as lmplz's

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class NgramTable:
    """All n-grams of one order; row r is the n-gram `context[r]` (a row of the order below) + `word[r]`.

    Attributes:
        context: row in the order below of all words but the last; zeros for unigrams.
        suffix: row in the order below of all words but the first; zeros for unigrams.
        word: last word, an index into the vocabulary.
        count: occurrences in the text.
        starts: whether the n-gram begins with `<s>`.
        discounts: D1, D2 and D3+, Chen and Goodman eq. 26.
        estimated: whether `discounts` come from the text; false: they are `FALLBACK`.
        probability: interpolated with the orders below.
        backoff: weight of the order below in contexts that end here; 1 where the n-gram is no context.
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
    """A model: `tables[n - 1]` holds the n-grams, `vocabulary[0:3]` is `<unk>`, `<s>`, `</s>`."""

    vocabulary: list[str]
    tables: list[NgramTable]
    sentences: int
    tokens: int  # words of the text, without the sentences' boundaries
    unknown: int  # of these outside the given vocabulary

    @property
    def order(self) -> int:
        """Length of the longest n-grams."""
        return len(self.tables)

    def ngrams(self, order: int) -> list[tuple[str, ...]]:
        """The words of all n-grams of an order, in the order of its table."""
        rows: list[tuple[str, ...]] = [(word,) for word in self.vocabulary]
        for table in self.tables[1:order]:
            pairs = zip(table.context.tolist(), table.word.tolist(), strict=True)
            rows = [(*rows[context], self.vocabulary[word]) for context, word in pairs]
        return rows


def estimate(
    sentences: Iterable[Sequence[str]], order: int = 3, vocabulary: Iterable[str] | None = None
) -> NgramEstimate:
    """Estimate a model.

    Memory: about 60 bytes per word of text at order 3.

    Args:
        sentences: words of each sentence, without `<s>` and `</s>`; empty ones are passed over.
        order: 2 … 6; that of the longest sentence with its boundaries where none is so long.
        vocabulary: all words that the model is to know, those that the text lacks included; any other word
            counts as `<unk>`. None: the words of the text.

    Raises:
        UserError: no text, an order outside 2 … 6, or a word that is `<s>` or `</s>`.

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
    """Number the words: indices of the text with its boundaries, positions in the sentence, vocabulary."""
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
        if min(ids) <= 2 and any(number in (1, 2) for number in ids):
            raise UserError(f"the text has {BEGIN} or {END} as a word: {' '.join(sentence)[:80]!r}")
        words += [1, *ids, 2]
        offsets += range(len(ids) + 2)
    if given is not None:
        return np.array(words, dtype=np.int64), np.array(offsets, dtype=np.int64), list(index), unknown
    # The same text in another order gives the same file.
    names = [*SPECIAL, *sorted(list(index)[3:])]
    place = {word: number for number, word in enumerate(names)}
    moved = np.array([place[word] for word in index], dtype=np.int64)
    return moved[np.array(words, dtype=np.int64)], np.array(offsets, dtype=np.int64), names, unknown


def _count(words: Ints, offsets: Ints, size: int, order: int) -> list[NgramTable]:
    """Count the n-grams of every order; those of the order below number the contexts and the suffixes."""
    zeros = np.zeros(size, dtype=np.int64)
    counts = np.bincount(words, minlength=size)
    tables = [NgramTable(zeros, zeros, np.arange(size), counts, np.arange(size) == SPECIAL.index(BEGIN))]
    row = words  # of the n-gram that ends at each position, in the table of its order
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
    """The number of different words before an n-gram; occurrences where nothing can come before it."""
    if longer is None:
        return table.count.copy()
    return np.where(table.starts, table.count, np.bincount(longer.suffix, minlength=len(table)))


def _smooth(table: NgramTable, adjusted: Ints, shorter: NgramTable | None) -> None:
    """Fill in discounts and probabilities, and the back-off weights of the order below."""
    table.discounts, table.estimated = _discounts(adjusted)
    discount = np.array((0.0, *table.discounts))[np.minimum(adjusted, 3)]
    contexts = len(shorter) if shorter else 1
    total = np.bincount(table.context, adjusted, minlength=contexts)
    freed = np.bincount(table.context, discount, minlength=contexts)
    weight = np.divide(freed, total, out=np.ones(contexts), where=total > 0)
    own = (adjusted - discount) / total[table.context]
    if shorter is None:
        # Below unigrams lies the uniform distribution, over all words but <s>.
        table.probability = own + weight[0] / (len(table) - 1)
        table.probability[SPECIAL.index(BEGIN)] = 0.0
    else:
        table.probability = own + weight[table.context] * shorter.probability[table.suffix]
        shorter.backoff = weight


def _discounts(adjusted: Ints) -> tuple[tuple[float, float, float], bool]:
    """D1, D2 and D3+ from the counts of counts (Chen and Goodman 1998, eq. 26), where they allow it."""
    n = [int((adjusted == count).sum()) for count in range(5)]
    if min(n[1:4]) == 0:
        return FALLBACK, False
    y = n[1] / (n[1] + 2 * n[2])
    d1, d2, d3 = (count - (count + 1) * y * n[count + 1] / n[count] for count in (1, 2, 3))
    if not (0 <= d1 <= 1 and 0 <= d2 <= 2 and 0 <= d3 <= 3):
        return FALLBACK, False
    return (d1, d2, d3), True
