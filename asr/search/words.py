"""Lexicon search: the word sequence with the fewest phone edits from the recognised phones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from asr.search.decoder import Search, Weights
from asr.search.path import TokenPath, Word
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import Tokenizer

EDIT = 1000  # unit of costs: a thousandth of an edit


class WordSearch:
    """Segments phone sequences into words of a lexicon.

    The cost of a segmentation is the number of phone substitutions, insertions and deletions relative to the
    words' closest pronunciations, plus a penalty per word. Phones outside all words cost one insertion
    each. Of homophones, the first in the lexicon is chosen; of segmentations with equal cost, the one with
    the longest last word.

    Example:
        >>> lexicon = Lexicon({"GO": [("G", "OW")], "ON": [("AA", "N"), ("AO", "N")]})
        >>> WordSearch(lexicon)(["G", "OW", "AO", "G"])
        [Word(word='GO', start=0, end=2), Word(word='ON', start=2, end=4)]
    """

    def __init__(self, lexicon: Lexicon, word_penalty: float = 0.1):
        """Build the trie of all pronunciations.

        Args:
            lexicon: lexicon with at least one word.
            word_penalty: cost per word in edits, 0 … 1; a small penalty breaks ties in favour of fewer words.
        """
        self.vocabulary = list(lexicon)
        self._phone_ids = {phone: index for index, phone in enumerate(lexicon.phones)}
        self._penalty = round(word_penalty * EDIT)
        self._build_trie(lexicon)

    def _build_trie(self, lexicon: Lexicon) -> None:
        """Number the trie's nodes in preorder, so that most follow their parents; the root is 0."""
        entries = [
            (tuple(self._phone_ids[phone] for phone in phones), word)
            for word, pronunciations in lexicon.pronunciations.items()
            for phones in pronunciations
        ]
        parents, phones_of, depths = [0], [-1], [0]  # by depth; -1 is no phone
        word_of: dict[int, str] = {}
        node_of = [0] * len(entries)
        depth = 0
        while active := [index for index, (phones, _) in enumerate(entries) if len(phones) > depth]:
            children: dict[tuple[int, int], int] = {}
            for index in active:
                phones, word = entries[index]
                edge = (node_of[index], phones[depth])
                if edge not in children:
                    children[edge] = len(parents)
                    parents.append(edge[0])
                    phones_of.append(edge[1])
                    depths.append(depth + 1)
                node_of[index] = children[edge]
                if len(phones) == depth + 1:
                    word_of.setdefault(node_of[index], word)
            depth += 1
        ends = sorted(word_of)  # the first counts if costs are equal
        place = _preorder(parents)
        self._words = [word_of[node] for node in ends]
        self._ends, self._end_depths = place[ends], np.array(depths)[ends]
        self._parents, phone_of = np.empty_like(place), np.empty_like(place)
        self._parents[place], phone_of[place] = place[parents], phones_of
        self._others = np.flatnonzero(self._parents[1:] != np.arange(len(parents) - 1)) + 1
        self._matches = _last_matches(self._parents, phone_of, len(self._phone_ids))

    def __call__(self, phones: Sequence[str]) -> list[Word]:
        """Return the words with the least cost and the phones that each covers.

        Args:
            phones: recognised phones of one utterance; those outside the lexicon (NSN, SPN) are skipped at
                no cost.

        Returns:
            Words in order, with `start` and `end` positions in `phones`.
        """
        kept = [position for position, phone in enumerate(phones) if phone in self._phone_ids]
        ids = [self._phone_ids[phones[position]] for position in kept]
        boundaries = self._boundaries(ids)
        words = []
        position = len(ids)
        while position > 0:
            _, end, start = boundaries[position]
            if end < 0:  # a phone outside every word
                position -= 1
                continue
            words.append(Word(self._words[end], kept[start], kept[position - 1] + 1))
            position = start
        return words[::-1]

    def _boundaries(self, ids: Sequence[int]) -> list[tuple[int, int, int]]:
        """Viterbi search over (phones read, trie node).

        Returns:
            For each number of phones read, 0 … U, the best segmentation: its cost, the word that ends there
            (-1: the last phone is outside all words) and the word's start.
        """
        # A cost and the start of the current word share one integer, so that one minimum selects both: the
        # position is in the lower bits. 32 bits are enough for a minute of speech.
        bits = len(ids).bit_length()
        largest = (len(ids) + int(self._end_depths.max()) + 2) * EDIT << bits
        kind: type[np.signedinteger[Any]] = np.int32 if largest < 2**31 else np.int64
        edit, mask = EDIT << bits, (1 << bits) - 1
        to_ends = (self._end_depths * edit).astype(kind)
        ends = np.empty_like(to_ends)
        boundaries = [(0, -1, 0)]
        # best[node]: least cost of reaching the node minus the cost of deleting all its phones, and the start
        # of its word. Deleting a phone doesn't change the difference, so no node is above its parent.
        best = np.zeros(len(self._parents), dtype=kind)
        moved = np.empty_like(best)
        parents_of_others = self._parents[self._others]
        root = 0
        for position, phone in enumerate(ids, start=1):
            # Substitute the phone on an edge of the trie, or insert it at a node; or match it on an edge,
            # and delete the phones from there to a node.
            best[0] = root
            nodes, before = self._matches[phone]
            matched = best.take(before)
            moved[0], moved[1:] = root, best[:-1]
            moved[self._others] = best.take(parents_of_others)
            best += edit
            np.minimum(best, moved, out=best)
            matched -= edit
            best[nodes] = np.minimum(best.take(nodes), matched)
            # End a word here, or leave the phone outside all words.
            best.take(self._ends, out=ends, mode="clip")
            ends += to_ends
            end = int(ends.argmin())
            cost, start = (int(ends[end]) >> bits) + self._penalty, int(ends[end]) & mask
            outside = boundaries[-1][0] + EDIT
            boundaries.append((cost, end, start) if cost <= outside else (outside, -1, position))
            # Start a new word here, possibly with deleted phones.
            root = (boundaries[-1][0] << bits) + position
            moved.fill(root)  # faster than the minimum with a number
            np.minimum(best, moved, out=best)
        return boundaries


@dataclass(frozen=True)
class WithWords(Search):
    """A phone search followed by the lexicon search for words."""

    search: Search
    tokenizer: Tokenizer
    segment: WordSearch

    @property
    def vocabulary(self) -> Sequence[str]:
        """The words that it can find."""
        return self.segment.vocabulary

    @property
    def tunable(self) -> tuple[str, ...]:
        """The weights of the phone search."""
        return self.search.tunable

    @property
    def reentrant(self) -> bool:
        """The lexicon search has no state."""
        return self.search.reentrant

    def with_weights(self, weights: Weights) -> "WithWords":
        """Return the search with other weights of the phone search."""
        return replace(self, search=self.search.with_weights(weights))

    def __call__(self, log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
        """Decode a batch."""
        return [self._with_words(path) for path in self.search(log_probs_BTV, lengths_B)]

    def _with_words(self, path: TokenPath) -> TokenPath:
        words = self.segment(self.tokenizer.tokens(path.ids))
        return replace(
            path, words=words, alternatives=[self._with_words(other) for other in path.alternatives]
        )


def with_words(search: Search, tokenizer: Tokenizer, lexicon: Lexicon | None) -> Search:
    """Return a search that also finds words if labels are phones, which alone have a lexicon."""
    return search if lexicon is None else WithWords(search, tokenizer, WordSearch(lexicon))


def _preorder(parents: Sequence[int]) -> NDArray[np.int64]:
    """Return the places of nodes in preorder, [N], from their parents, each before its children."""
    sizes = [1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        sizes[parents[node]] += sizes[node]
    place, free = [0] * len(parents), [1] * len(parents)
    for node in range(1, len(parents)):
        place[node] = free[parents[node]]
        free[parents[node]] += sizes[node]
        free[node] = place[node] + 1
    return np.array(place)


def _last_matches(
    parents: NDArray[np.int64], phone_of: NDArray[np.int64], phones: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return for each phone the nodes with such an edge on their path, and where the last such edge begins.

    The last edge is the cheapest to match, because no node costs more to reach than its parent.

    Args:
        parents: [N] parent of each node; the root's is itself.
        phone_of: [N] phone of the edge to each node.
        phones: number of phones.
    """
    nodes = np.arange(1, len(parents))
    edges = nodes
    found = []
    while len(nodes):  # the edges to the nodes, then the edges before these, …
        found.append((phone_of[edges], nodes, parents[edges]))
        inner = parents[edges] > 0
        nodes, edges = nodes[inner], parents[edges[inner]]
    phone, node, before = (np.concatenate(parts) for parts in zip(*found, strict=True))
    _, last = np.unique(phone * len(parents) + node, return_index=True)  # sorted by phone
    bounds = np.searchsorted(phone[last], np.arange(1, phones))
    return list(zip(np.split(node[last], bounds), np.split(before[last], bounds), strict=True))
