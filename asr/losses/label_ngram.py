"""An n-gram of labels as a weighted graph whose states are label histories.

The graph has a state for the start, for each single label, and for each longer history that is kept. A label
that was not seen after a history has its probability after the shorter history times the back-off weight. In
an interpolated estimate,

    p(l | yg) = own(l | yg) + backoff(yg) p(l | g),

so a step over all arcs, exact and without failure arcs, is a product with two sparse matrices: `collapse`
adds to each history the weight of longer ones that end in it, and `extend` appends a label. They have as many
entries as there are seen n-grams, not histories × labels.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.files import digest
from asr.lm.kneser_ney import BEGIN, END, UNKNOWN, estimate

START, STOP = 0, -1  # 0 is free for START, because it is blank, which no history contains
HISTORIES = 2000  # of two or more labels; the sparse products of each frame grow with their number

History = tuple[int, ...]


@dataclass
class LabelNgram:
    """Probabilities of labels 1 … V − 1 and of `STOP` after a history.

    Attributes:
        vocabulary: V.
        seen: probabilities by history and label; the empty history has all labels.
        backoff: back-off weights of the non-empty histories. Each of these histories is a state of the graph.
        states: these histories, shortest first.
        index: number of each state.
    """

    vocabulary: int
    seen: dict[History, dict[int, float]]
    backoff: dict[History, float]

    def __post_init__(self) -> None:
        for label in range(self.vocabulary):  # histories that always have a state
            self.backoff.setdefault((label,), 1.0)
        self.states = sorted(self.backoff, key=lambda history: (len(history), history))
        self.index = {history: number for number, history in enumerate(self.states)}

    def probability(self, history: History, label: int) -> float:
        """Return p(label | history)."""
        known = self.seen.get(history, {})
        if label in known or not history:
            return known.get(label, 0.0)
        return self.backoff[history] * self.probability(history[1:], label)

    def after(self, history: History, label: int) -> History:
        """Return the state after a label: the longest suffix of history and label that is a state."""
        longer = (*history, label)
        while longer not in self.backoff:
            longer = longer[1:]
        return longer

    def log_probability(self, labels: Iterable[int]) -> float:
        """Return the natural-log probability of a label sequence and its end; −∞ for an impossible one."""
        history: History = (START,)
        total = 0.0
        for label in labels:
            total += _log(self.probability(history, label))
            history = self.after(history, label)
        return total + _log(self.probability(history, STOP))

    @property
    def digest(self) -> str:
        """Hash of all probabilities, 16 hex digits."""
        lines = [repr((h, self.backoff.get(h), sorted(p.items()))) for h, p in sorted(self.seen.items())]
        return digest("\n".join(lines), 16)


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def estimate_labels(
    targets: Iterable[Sequence[int]], vocabulary: int, order: int, histories: int = HISTORIES
) -> LabelNgram:
    """Estimate an n-gram with interpolated modified Kneser–Ney smoothing.

    Args:
        targets: labels 1 … V − 1 of each training utterance.
        vocabulary: V. Labels that never occur get the probability of unknown words.
        order: length of the longest n-grams.
        histories: number of histories of two or more labels to keep; the most frequent ones are kept, and the
            others back off, as in Kaldi (`num-extra-lm-states`, Povey et al. 2016).

    Raises:
        UserError: there are no targets, or the order is out of range.
    """
    labels = [str(label) for label in range(1, vocabulary)]
    model = estimate(([str(label) for label in target] for target in targets), order, labels)
    number = {name: int(name) for name in labels} | {BEGIN: START, END: STOP}
    seen: dict[History, dict[int, float]] = {}
    backoff: dict[History, float] = {}
    counts: dict[History, int] = {}
    for length, table in enumerate(model.tables, start=1):
        rows = zip(
            model.ngrams(length),
            table.probability.tolist(),
            table.backoff.tolist(),
            table.count.tolist(),
            strict=True,
        )
        for words, probability, weight, count in rows:
            if UNKNOWN in words:
                continue
            *context, last = (number[word] for word in words)
            if last != START:
                seen.setdefault(tuple(context), {})[last] = probability
            if last != STOP and length < len(model.tables):
                backoff[(*context, last)] = weight
                counts[(*context, last)] = count
    # This order ensures that every prefix and suffix of a kept history is kept.
    longer = sorted((h for h in counts if len(h) > 1), key=lambda h: (-counts[h], len(h), h))
    for history in longer[histories:]:
        del backoff[history]
        seen.pop(history, None)
    return LabelNgram(vocabulary, seen, backoff)


def graph_matrices(ngram: LabelNgram) -> tuple[Tensor, Tensor]:
    """Return the matrices whose product `extend @ collapse` leads from each state to its successors.

    Returns:
        `extend` [S, S + 1] and `collapse` [S + 1, S], sparse COO in float64; row and column S + 1 are the
        empty history.
    """
    S = len(ngram.states)
    index = ngram.index | {(): S}
    collapse: list[tuple[int, int, float]] = []
    extend: dict[tuple[int, int], float] = {}

    def add(state: History, source: History, weight: float) -> None:
        place = (index[state], index[source])
        extend[place] = extend.get(place, 0.0) + weight

    for state in ngram.states:
        weight, suffix = 1.0, state
        while True:
            collapse.append((index[suffix], index[state], weight))
            if not suffix:
                break
            weight, suffix = weight * ngram.backoff[suffix], suffix[1:]
    for state in ngram.states:
        *context, label = state
        if label == START:
            continue
        add(state, tuple(context), ngram.probability(tuple(context), label))
    for source, known in ngram.seen.items():
        for label, probability in known.items():
            if label == STOP or not source:
                continue
            shorter = ngram.probability(source[1:], label)
            handed_down = ngram.backoff[source] * shorter
            longer = (*source, label)
            # What `source` passes down must not reach the shorter state as well. The negative entry cancels a
            # number with the same label, so with the same outputs: in float64, rounding is far smaller.
            if longer in index:
                add(longer[1:], source, -handed_down)
            else:
                add(ngram.after(source, label), source, max(0.0, probability - handed_down))
    places = torch.tensor(list(extend)).T
    extend_SN = torch.sparse_coo_tensor(
        places, torch.tensor(list(extend.values()), dtype=torch.double), (S, S + 1)
    )
    rows, columns, weights = zip(*collapse, strict=True)
    collapse_NS = torch.sparse_coo_tensor(
        torch.tensor([rows, columns]), torch.tensor(weights, dtype=torch.double), (S + 1, S)
    )
    return extend_SN, collapse_NS
