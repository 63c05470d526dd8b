"""Scores of beam search that don't tie, because flashlight breaks ties by addresses in memory.

Where two hypotheses have exactly the same score, the places of their objects in memory decide which one
flashlight keeps, so the same input gave other texts in another process or search object. Hypotheses differ in
the labels of their frames or in their words. Therefore:

* Each log-probability is lowered by a pseudo-random share of at most 1/8192 (`perturbed`), which separates
  different labels. A label with two uses has two indices (`spelling.py`).
* Each word costs an amount of its own (`word_costs`), at most 0.0024 (times the weight of a language model).
  It separates different words with the same labels: a word and its parts without a language model, or words
  to which the model gives equal probabilities, e.g. all unknown ones.

Both are far below what matters: a word score is about 1, a wrong label costs 10. They decide what the search
keeps and the order of ties, and are not part of the scores returned.

The alternative, an index of its own for each word's last label and a random amount for it, needs no
Python call per word with a language model. But flashlight compares a label's index with the one before to
require a blank between equal labels, so that words which end and start with the same label would need none;
and it would try twice as many labels per frame.

Two kinds of ties remain. A float32 leaves about a thousand amounts for each log-probability and word, so that
two sums may be equal by chance. And without a language model only the order of the 100 shortest words counts,
so that two orders of the same longer words would tie if they had the same labels.
"""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from asr.errors import UserError
from asr.lm.ngram import load_kenlm
from asr.search.spelling import Labels

EMISSION_SHARE = 2.0**-13  # leaves 2^10 to 2^11 different amounts in the 24 bits of a float32
EMISSION_LEAST = 2.0**-20  # for log-probabilities of 0
WORD_WEIGHT = 2.0**-9  # weight of `word_costs`
ORDERED_WORDS = 100  # shortest words whose order counts; their pairs take 30 ms to write and load


def perturbed(log_probs_TN: Tensor) -> Tensor:
    """Return log-probabilities minus small pseudo-random amounts, which depend on frame and label only."""
    random_TN = torch.rand(log_probs_TN.shape, generator=torch.Generator().manual_seed(0))
    return log_probs_TN + random_TN * (EMISSION_SHARE * log_probs_TN - EMISSION_LEAST)


def word_costs(spellings: dict[str, list[Labels]]) -> dict[str, float]:
    """Return a cost for each word, 1/8 … 15/16: it grows with its place among homophones, then by a hash."""
    homophones: dict[Labels, int] = {}
    costs = {}
    for word, spelled in spellings.items():
        place = 0
        for labels in set(spelled):
            place = max(place, homophones.get(labels, 0))
            homophones[labels] = homophones.get(labels, 0) + 1
        costs[word] = (2 + 2 * min(place, 5) + _fraction(word)) / 16
    return costs


def word_cost_lm(spellings: dict[str, list[Labels]], costs: dict[str, float]) -> Any:
    """Return a bigram model whose log10 probabilities are the negative costs.

    KenLM scores them without a Python call per word. The bigrams of the shortest words cost a little
    more, each its own amount: with one sum for every order of the same words, `Z E Z` and `Z Z E` would tie
    where Z may also be said as Z and E together.
    """
    try:
        from flashlight.lib.text import decoder  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"decoder=beam needs flashlight-text ({error}): pip install 'flashlight-text>=0.0.7'"
        ) from error
    words = list(costs)
    short = sorted(range(len(words)), key=lambda x: min(map(len, spellings[words[x]])))[:ORDERED_WORDS]
    unigrams = [f"{-cost:.8f}\t{number}\t0" for number, cost in enumerate(costs.values())]
    unigrams += ["-9\t<unk>\t0", "-99\t<s>\t0", "0\t</s>"]
    bigrams = ["0\t<s> </s>"]  # KenLM requires one
    for one, other in itertools.product(short, repeat=2):
        cost = costs[words[other]] + _fraction(f"{words[one]} {words[other]}") / 64
        bigrams.append(f"{-cost:.8f}\t{one} {other}")
    lines = ["\\data\\", f"ngram 1={len(unigrams)}", f"ngram 2={len(bigrams)}", "", "\\1-grams:", *unigrams]
    lines += ["", "\\2-grams:", *bigrams, "", "\\end\\", ""]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "costs.arpa")
        path.write_text("\n".join(lines))
        return load_kenlm(path, [str(number) for number in range(len(words))])


def _fraction(text: str) -> float:
    """Return a pseudo-random number, 0 … 1, that is the same in every process."""
    return crc32(text.encode()) / 2**32


def with_word_costs(lm: Any, costs: Sequence[float]) -> Any:
    """Return a language model that subtracts from each log10 probability the word's cost × WORD_WEIGHT.

    The cost also depends on the word's position. Otherwise two homophones would tie with the same two in the
    other order.
    """
    from flashlight.lib.text.decoder import LM

    class CostlyLM(LM):
        def start(self, start_with_nothing: bool) -> Any:
            state = lm.start(start_with_nothing)
            self._known = {state: _State(0)}
            return state

        def score(self, state: Any, word: int) -> tuple[Any, float]:
            before = self._known[state]
            if (known := before.scored.get(word)) is not None:
                return known
            after, log10_probability = lm.score(state, word)
            self._known[after] = _State(before.words + 1)
            found = before.scored[word] = after, log10_probability - before.factor * costs[word]
            return found

        def finish(self, state: Any) -> tuple[Any, float]:
            return lm.finish(state)

    return CostlyLM()


class _State:
    """What is known after some words: the factor of the next word's cost, and the words scored so far."""

    __slots__ = ("factor", "scored", "words")

    def __init__(self, words: int):
        self.words = words
        self.factor = WORD_WEIGHT * (1 + (words * 0.618034 % 1) / 4)
        self.scored: dict[int, tuple[Any, float]] = {}
