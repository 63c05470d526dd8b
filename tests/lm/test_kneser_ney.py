import gzip
import itertools
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from asr.errors import UserError
from asr.lm.arpa import write_arpa
from asr.lm.kneser_ney import FALLBACK, estimate

DATA = Path(__file__).parent / "data"


def tables_of(model):
    """Return {n-gram: (probability, back-off)}."""
    found = {}
    for order, table in enumerate(model.tables, start=1):
        numbers = zip(table.probability.tolist(), table.backoff.tolist(), strict=True)
        found |= dict(zip(model.ngrams(order), numbers, strict=True))
    return found


def lookup(found, context, word):
    """Return p(word | context) by backing off."""
    if (*context, word) in found:
        return found[(*context, word)][0]
    return found.get(context, (0, 1.0))[1] * lookup(found, context[1:], word)


def naive(sentences, order):
    """Return a function for p(word | context), computed from the definition (Chen and Goodman 1998, section
    4.1.6) with one dictionary of counts per order and recursion to the uniform distribution.
    """
    raw = [Counter() for _ in range(order + 1)]
    for sentence in sentences:
        words = ("<s>", *sentence, "</s>")
        for length in range(1, order + 1):
            raw[length].update(words[i : i + length] for i in range(len(words) - length + 1))
    counts = [Counter() for _ in range(order + 1)]
    counts[order] = raw[order]
    for length in range(1, order):
        for ngram in raw[length]:
            before = sum(longer[1:] == ngram for longer in raw[length + 1])
            counts[length][ngram] = raw[length][ngram] if ngram[0] == "<s>" else before
    counts[1].pop(("<s>",), None)
    vocabulary = {word for sentence in sentences for word in sentence} | {"</s>", "<unk>"}

    def discount(length, count):
        of = Counter(counts[length].values())
        if not (of[1] and of[2] and of[3]):
            return (0, *FALLBACK)[min(count, 3)]
        y = of[1] / (of[1] + 2 * of[2])
        found = [k - (k + 1) * y * of[k + 1] / of[k] for k in (1, 2, 3)]
        if any(not 0 <= d <= k for k, d in enumerate(found, start=1)):
            found = list(FALLBACK)
        return (0, *found)[min(count, 3)]

    def probability(context, word):
        length = len(context) + 1
        following = {ngram[-1]: n for ngram, n in counts[length].items() if ngram[:-1] == context and n}
        lower = probability(context[1:], word) if context else 1 / len(vocabulary)
        if not following:
            return lower
        total = sum(following.values())
        kept = following.get(word, 0) - discount(length, following.get(word, 0))
        return kept / total + sum(discount(length, n) for n in following.values()) / total * lower

    return probability, vocabulary


def random_text(seed, sentences, words="abcd"):
    rng = random.Random(seed)
    return [
        rng.choices(words, weights=range(1, len(words) + 1), k=rng.randint(1, 6)) for _ in range(sentences)
    ]


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("sentences", [1, 4, 30])
def test_probabilities_equal_the_definition(order, sentences):
    text = random_text(order, sentences)
    found = tables_of(estimate(text, order))
    probability, vocabulary = naive(text, order)
    contexts = {
        ("<s>", *sentence)[i : i + length]
        for sentence in map(tuple, text)
        for length in range(order)
        for i in range(len(sentence) + 2 - length)
    }
    for context in contexts:
        values = {word: lookup(found, context, word) for word in vocabulary}
        assert sum(values.values()) == pytest.approx(1, abs=1e-9)
        for word, value in values.items():
            assert value == pytest.approx(probability(context, word), abs=1e-12)


def test_a_worked_example():
    """`a b` and `a` at order 2, too small to estimate discounts: D1 = 0.5, D2 = 1.

    Unigrams count distinct preceding words: a after <s>; b after a; </s> after b and a. These are 4 in all;
    the discounts free 2, shared by a, b, </s> and <unk>: a has 0.5 / 4 + 2 / 4 / 4.
    a is followed by b and </s>, once each: half of that context's mass goes to unigrams.
    """
    found = tables_of(estimate([["a", "b"], ["a"]], order=2))
    assert found[("a",)][0] == pytest.approx(1 / 8 + 1 / 8)
    assert found[("</s>",)][0] == pytest.approx(1 / 4 + 1 / 8)
    assert found[("<unk>",)][0] == pytest.approx(1 / 8)
    assert found[("a",)][1] == pytest.approx(0.5)
    assert found[("a", "b")][0] == pytest.approx(0.25 + 0.5 * found[("b",)][0])
    # <s> a occurs twice: D2 takes 1 of 2.
    assert found[("<s>", "a")][0] == pytest.approx(0.5 + 0.5 * found[("a",)][0])


def test_the_model_equals_that_of_lmplz():
    model = estimate([line.split() for line in (DATA / "words.txt").read_text().splitlines()], order=3)
    assert all(table.estimated for table in model.tables)
    found = tables_of(model)
    theirs = {}
    with gzip.open(DATA / "lmplz.arpa.gz", "rt") as file:
        for line in file:
            if "\t" in line:
                probability, words, *backoff = line.split("\t")
                theirs[tuple(words.split())] = float(probability), float(backoff[0]) if backoff else 0.0
    assert found.keys() == theirs.keys()
    for ngram, (probability, backoff) in found.items():
        if ngram != ("<s>",):
            assert math.log10(probability) == pytest.approx(theirs[ngram][0], abs=2e-6)
            assert math.log10(backoff) == pytest.approx(theirs[ngram][1], abs=2e-6)


def test_the_order_of_the_sentences_does_not_matter():
    text = random_text(0, 20)
    one, other = estimate(text, 3), estimate(text[::-1], 3)
    assert one.vocabulary == other.vocabulary
    assert list(tables_of(one).items()) == list(tables_of(other).items())


def test_a_given_vocabulary():
    """Words missing from the text share the mass freed by discounting; words outside the vocabulary count as
    <unk>.
    """
    text = [["a", "b", "a"], ["b", "x"], ["a"], ["y", "a"]]
    model = estimate(text, 2, vocabulary=["a", "b", "c"])
    assert model.vocabulary == ["<unk>", "<s>", "</s>", "a", "b", "c"]
    assert model.unknown == 2
    found = tables_of(model)
    assert 0 < found[("c",)][0] < found[("b",)][0]
    assert ("b", "<unk>") in found
    for context in [(), ("a",), ("b",), ("<unk>",), ("c",), ("<s>",)]:
        total = sum(lookup(found, context, word) for word in model.vocabulary if word != "<s>")
        assert total == pytest.approx(1, abs=1e-9)


def test_short_sentences_limit_the_order():
    model = estimate([["a"], ["b"]], 5)
    assert len(model.tables) == 3
    assert max(map(len, tables_of(model))) == 3


def test_no_backoff_weight_is_zero(tmp_path):
    """With D2 = 0, writing the model failed: a weight of 0 has no logarithm."""
    model = estimate([["c", "d", "b"], ["c"], ["c", "b"]], 2)
    assert (model.tables[0].backoff > 0).all()
    write_arpa(model, tmp_path / "small.arpa")


def test_invalid_input_raises():
    with pytest.raises(UserError, match="found no sentence with a word"):
        estimate([[], []])
    with pytest.raises(UserError, match="order=7: expected 2 … 6"):
        estimate([["a"]], 7)
    with pytest.raises(UserError, match="</s> as a word"):
        estimate([["a", "</s>"]])


def test_every_ngram_of_the_text_is_in_the_model_with_its_count():
    text = random_text(3, 40)
    model = estimate(text, 3)
    expected = defaultdict(int)
    for sentence in text:
        words = ("<s>", *sentence, "</s>")
        for triple in itertools.pairwise(itertools.pairwise(words)):
            expected[(*triple[0], triple[1][1])] += 1
    assert dict(zip(model.ngrams(3), model.tables[2].count.tolist(), strict=True)) == dict(expected)
