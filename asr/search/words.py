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
WORD_PENALTY = 100  # breaks ties in favour of fewer words
POSITION_BITS = 24  # enough for far more phones than any two segmentations may differ in


class WordSearch:
    """Segments phone sequences into words of a lexicon.

    The cost of a segmentation is the number of phone substitutions, insertions and deletions relative to the
    words' closest pronunciations, plus a penalty per word. Each phone outside all words costs an insertion.
    The first homophone in the lexicon is chosen; among segmentations of equal cost, the one with the longest
    last word.

    Example:
        >>> lexicon = Lexicon({"GO": [("G", "OW")], "ON": [("AA", "N"), ("AO", "N")]})
        >>> WordSearch(lexicon)(["G", "OW", "AO", "G"])
        [Word(word='GO', start=0, end=2), Word(word='ON', start=2, end=4)]
    """

    def __init__(self, lexicon: Lexicon):
        """Build the trie of all pronunciations of a lexicon with at least one word."""
        self.vocabulary = list(lexicon)
        self._phone_ids = {phone: index for index, phone in enumerate(lexicon.phones)}
        self._build_trie(lexicon)

    def _build_trie(self, lexicon: Lexicon) -> None:
        """Number the trie's nodes in preorder, so that most follow their parents; the root is 0."""
        entries = [
            (tuple(self._phone_ids[phone] for phone in phones), word)
            for word, pronunciations in lexicon.pronunciations.items()
            for phones in pronunciations
        ]
        parents, phones_of, depths = [0], [-1], [0]  # by depth; -1: no phone
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
            phones: recognised phones of one utterance; phones outside the lexicon (NSN, SPN) are skipped at
                no cost.

        Returns:
            Words in order, with `start` and `end` positions in `phones`.
        """
        # 32 bits suffice for a minute of speech, and take half the time.
        bits = len(phones).bit_length()
        largest = (len(phones) + int(self._end_depths.max()) + 2) * EDIT << bits
        return Segmentation(self, bits, np.int32 if largest < 2**31 else np.int64).push(phones, last=True)[0]

    def start(self) -> "Segmentation":
        """Return a segmentation of phones as they arrive."""
        return Segmentation(self, POSITION_BITS, np.int64)


class Segmentation:
    """Viterbi search over (phones read, trie node) that returns words once no later phone can change them.

    Args:
        search: trie and costs.
        bits: bits for the number of a phone.
        kind: integer type that holds a cost together with the number of a phone.

    Attributes:
        boundaries: for each number of phones read since the last final word, 0 … U, the best segmentation:
            its cost, the word that ends there (-1: the last phone is outside all words) and the word's start.
    """

    def __init__(self, search: WordSearch, bits: int, kind: type[np.signedinteger[Any]]) -> None:
        self._search = search
        # A cost and the start of the current word share one integer, so that one minimum selects both: the
        # position is in the lower bits.
        self._bits, self._edit, self._mask = bits, EDIT << bits, (1 << bits) - 1
        self._to_ends = (search._end_depths * self._edit).astype(kind)
        self._ends = np.empty_like(self._to_ends)
        self.boundaries = [(0, -1, 0)]
        # best[node]: least cost of reaching the node minus the cost of deleting all its phones, and the start
        # of its word. Deleting a phone doesn't change the difference, so no node is above its parent.
        self._best = np.zeros(len(search._parents), dtype=kind)
        self._moved = np.empty_like(self._best)
        self._parents_of_others = search._parents[search._others]
        self._root = 0
        self._kept: list[int] = []  # positions of phones in the lexicon, among all since the last return
        self._phones = 0  # phones since the last return

    def push(self, phones: Sequence[str], last: bool = False) -> tuple[list[Word], int]:
        """Return the words that become final with new phones, and the number of phones up to their end.

        Args:
            phones: new phones.
            last: whether these phones end the text; then all words are final.

        Returns:
            Words in order, with `start` and `end` positions in the phones since the last return, and the
            number of these phones that no later word covers.
        """
        for phone in phones:
            if (index := self._search._phone_ids.get(phone)) is not None:
                self._kept.append(self._phones)
                self._read(index)
            self._phones += 1
        position = len(self._kept) if last else self._shared()
        words = self._words(position)
        returned = self._kept[position] if position < len(self._kept) else self._phones
        self._phones -= returned
        self._kept = [x - returned for x in self._kept[position:]]
        self._count_from(position)
        return words, returned

    def _read(self, phone: int) -> None:
        search, best, moved, ends = self._search, self._best, self._moved, self._ends
        position = len(self.boundaries)
        # Substitute the phone on an edge of the trie, or insert it at a node; or match it on an edge,
        # and delete the phones from there to a node.
        best[0] = self._root
        nodes, before = search._matches[phone]
        matched = best.take(before)
        moved[0], moved[1:] = self._root, best[:-1]
        moved[search._others] = best.take(self._parents_of_others)
        best += self._edit
        np.minimum(best, moved, out=best)
        matched -= self._edit
        best[nodes] = np.minimum(best.take(nodes), matched)
        # End a word here, or leave the phone outside all words.
        best.take(search._ends, out=ends, mode="clip")
        ends += self._to_ends
        end = int(ends.argmin())
        cost, start = (int(ends[end]) >> self._bits) + WORD_PENALTY, int(ends[end]) & self._mask
        outside = self.boundaries[-1][0] + EDIT
        self.boundaries.append((cost, end, start) if cost <= outside else (outside, -1, position))
        # Start a new word here, possibly with deleted phones.
        self._root = (self.boundaries[-1][0] << self._bits) + position
        moved.fill(self._root)  # faster than the minimum with a number
        np.minimum(best, moved, out=best)

    def _before(self, position: int) -> int:
        """Return the boundary before `position` in the best segmentation up to it."""
        _, end, start = self.boundaries[position]
        return position - 1 if end < 0 else start

    def _shared(self) -> int:
        """Return the last boundary that all segmentations share, whatever phones follow."""
        starts = {len(self.boundaries) - 1, *np.flatnonzero(np.bincount(self._best & self._mask)).tolist()}
        while len(starts) > 1:
            latest = max(starts)
            starts.remove(latest)
            starts.add(self._before(latest))
        return starts.pop()

    def _words(self, position: int) -> list[Word]:
        """Return the words of the best segmentation up to a boundary."""
        words = []
        while position > 0:
            _, end, start = self.boundaries[position]
            if end >= 0:  # otherwise a phone outside all words
                kept = self._kept[start], self._kept[position - 1] + 1
                words.append(Word(self._search._words[end], *kept))
            position = self._before(position)
        return words[::-1]

    def _count_from(self, position: int) -> None:
        """Count phones and costs from a boundary on, so that neither grows with the text."""
        cost = self.boundaries[position][0]
        self.boundaries = [(x - cost, end, start - position) for x, end, start in self.boundaries[position:]]
        self.boundaries[0] = (0, -1, 0)
        shift = (cost << self._bits) + position
        self._best -= shift
        self._root -= shift


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
        """Whether the phone search is; the lexicon search has no state."""
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
    """Return a search that also finds words, if labels are phones: other labels have no lexicon."""
    return search if lexicon is None else WithWords(search, tokenizer, WordSearch(lexicon))


def _preorder(parents: Sequence[int]) -> NDArray[np.int64]:
    """Return the places of nodes in preorder, [N], from their parents; each node is before its children."""
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
    """Return, for each phone, the nodes whose path has an edge of it, and where the last such edge begins.

    Matching the last edge is cheapest, because no node costs more to reach than its parent.

    Args:
        parents: [N] parent of each node; the root's is itself.
        phone_of: [N] phone of the edge to each node.
        phones: number of phones.
    """
    nodes = np.arange(1, len(parents))
    edges = nodes
    matches = []
    while len(nodes):  # the edges to the nodes, then the edges before these, …
        matches.append((phone_of[edges], nodes, parents[edges]))
        inner = parents[edges] > 0
        nodes, edges = nodes[inner], parents[edges[inner]]
    phone, node, before = (np.concatenate(parts) for parts in zip(*matches, strict=True))
    _, last = np.unique(phone * len(parents) + node, return_index=True)  # sorted by phone
    bounds = np.searchsorted(phone[last], np.arange(1, phones))
    return list(zip(np.split(node[last], bounds), np.split(before[last], bounds), strict=True))
