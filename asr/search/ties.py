"""Avoids ties between scores of beam search, because flashlight breaks them by memory addresses.

If two hypotheses have exactly the same score, the addresses of their objects decide which one flashlight
keeps, so the same input could give different texts in another process or search object. Hypotheses differ in
the labels of their frames or in their words. Therefore:

* Each log-probability is lowered by a pseudo-random fraction of at most 1/8192 (`perturbed`), which separates
  different labels. A label with two uses has two indices (`spelling.py`).
* Each word has a different cost (`word_costs`), at most 0.002 (times the weight of a language model). This
  separates different words with the same labels: a word and its parts without a language model, or words
  to which the model gives equal probabilities, e.g. all unknown ones.

Both are far below what matters: a word score is about 1, a wrong label costs 10. They decide what the search
keeps and the order of ties, and are not part of the returned scores.

The word costs are part of the n-gram model that flashlight queries, a copy of the given one (`costly_model`),
because a call to Python for each word would take longer than the rest of the search. Models that can't be
copied, such as KenLM binaries, are wrapped in Python (`with_costs`) and searched at half the speed.

The alternative, a separate index for each word's last label with a random amount, needs no copy. But
flashlight compares a label's index with the previous one to require a blank between equal labels, so words
that end and start with the same label would need none.

Two kinds of ties remain. A float32 leaves about a thousand amounts for each log-probability and word, so two
sums may be equal by chance. And the order of words matters only for pairs of the 100 shortest words and pairs
in the model: elsewhere, two spoken homophones with equal probabilities tie with the same two in the other
order. `BeamSearch` orders such results by the lexicon.
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.lm.binary import is_binary
from asr.lm.costs import NO_MODEL, CostlyCopy, fraction
from asr.lm.ngram import load_kenlm
from asr.search.spelling import Labels
from asr.text.files import stream_lines

EMISSION_SHARE = 2.0**-13  # leaves 2^10 to 2^11 different amounts in the 24 bits of a float32
EMISSION_LEAST = 2.0**-20  # for log-probabilities of 0
COST_STEP = 1 / 16  # unit of `word_costs`
WORD_WEIGHT = 2.0**-9  # weight of `word_costs` in a score
ORDERED_WORDS = 100  # number of shortest words whose order matters; their pairs take 30 ms to write and load


def perturbed(log_probs_TN: Tensor) -> Tensor:
    """Return log-probabilities minus small pseudo-random amounts that depend only on frame and label."""
    random_TN = torch.rand(log_probs_TN.shape, generator=torch.Generator().manual_seed(0))
    return log_probs_TN + random_TN * (EMISSION_SHARE * log_probs_TN - EMISSION_LEAST)


def word_costs(spellings: dict[str, list[Labels]]) -> dict[str, float]:
    """Return a cost for each word, 1/8 … 13/16, by its place among homophones, then by a hash."""
    homophones: dict[Labels, int] = {}
    costs = {}
    for word, spelled in spellings.items():
        place = 0
        for labels in set(spelled):
            place = max(place, homophones.get(labels, 0))
            homophones[labels] = homophones.get(labels, 0) + 1
        costs[word] = (2 + 2 * min(place, 5) + fraction(word)) * COST_STEP
    return costs


def costly_model(lm: str | Path, spellings: dict[str, list[Labels]]) -> Any:
    """Return flashlight's language model whose log10 probabilities are lowered by the words' costs.

    Args:
        lm: word n-gram model, ARPA or KenLM binary, checked by `read_vocabulary`.
        spellings: words that may be recognised, with their labels.

    Raises:
        UserError: see `load_kenlm`.
    """
    costs = {word: WORD_WEIGHT * cost for word, cost in word_costs(spellings).items()}
    copy = None if is_binary(lm) else _copy(stream_lines(lm), costs, WORD_WEIGHT * COST_STEP, spellings)
    return copy or with_costs(load_kenlm(lm, list(costs)), list(costs.values()))


def costs_alone(spellings: dict[str, list[Labels]]) -> Any:
    """Return flashlight's language model whose log10 probabilities are the words' negative costs."""
    return _copy(NO_MODEL.splitlines(), word_costs(spellings), COST_STEP, spellings)


def _copy(
    lines: Iterable[str], costs: dict[str, float], step: float, spellings: dict[str, list[Labels]]
) -> Any:
    """Return a copy of an ARPA file with costs as flashlight's language model; None if there can't be one."""
    shortest = sorted(costs, key=lambda word: min(map(len, spellings[word])))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "costs.arpa")
        names = CostlyCopy(costs, step, shortest[:ORDERED_WORDS]).write(lines, path)
        return names and load_kenlm(path, names)


def with_costs(lm: Any, costs: Sequence[float]) -> Any:
    """Return a language model in Python that lowers the log10 probabilities of words by their costs.

    Args:
        lm: flashlight's language model.
        costs: costs of its words. The costs charged also depend on a word's position: otherwise two
            homophones would tie with the same two in the other order.
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
            scored = before.scored[word] = after, log10_probability - before.factor * costs[word]
            return scored

        def finish(self, state: Any) -> tuple[Any, float]:
            return lm.finish(state)

    return CostlyLM()


class _State:
    """State after some words: the factor of the next word's cost, and the words scored so far."""

    __slots__ = ("factor", "scored", "words")

    def __init__(self, words: int):
        self.words = words
        self.factor = 1 + (words * 0.618034 % 1) / 4
        self.scored: dict[int, tuple[Any, float]] = {}
