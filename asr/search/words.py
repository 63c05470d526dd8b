"""Lexicon search: the word sequence with the fewest phone edits from the recognised phones."""

from collections.abc import Sequence

import numpy as np

from asr.search.path import Word
from asr.text.lexicon import Lexicon

# A cost and the start position of the current word share one integer, so that one minimum selects both: the
# cost in thousandths of an edit in the upper bits, the position in the lower bits.
POSITION_BITS = 24
START_MASK = (1 << POSITION_BITS) - 1
EDIT = 1000 << POSITION_BITS


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
        self._phone_ids = {phone: index for index, phone in enumerate(lexicon.phones)}
        self._penalty = round(word_penalty * 1000) << POSITION_BITS
        self._build_trie(lexicon)

    def _build_trie(self, lexicon: Lexicon) -> None:
        """Number the trie's nodes by depth (the root is 0), so that each level is one slice."""
        entries = [
            (tuple(self._phone_ids[phone] for phone in phones), word)
            for word, pronunciations in lexicon.pronunciations.items()
            for phones in pronunciations
        ]
        parents, phones_of, depths = [0], [-1], [0]  # -1 is no phone
        self._levels: list[slice] = []
        word_of: dict[int, str] = {}
        node_of = [0] * len(entries)
        depth = 0
        while active := [index for index, (phones, _) in enumerate(entries) if len(phones) > depth]:
            children: dict[tuple[int, int], int] = {}
            begin = len(parents)
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
            self._levels.append(slice(begin, len(parents)))
            depth += 1
        self._parents = np.array(parents)
        self._ends = np.array(sorted(word_of))
        self._words = [word_of[node] for node in self._ends.tolist()]
        self._from_root_to_ends = np.array(depths, dtype=np.int64)[self._ends] * EDIT
        phone_of = np.array(phones_of)
        self._edges = [np.flatnonzero(phone_of == phone) for phone in self._phone_ids.values()]

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
            For each number of phones read, 0 … U, the best segmentation: its cost (in the upper bits), the
            word that ends there (-1: the last phone is outside all words) and the word's start.
        """
        boundaries = [(0, -1, 0)]
        # best[node]: least cost of reaching the node, less that of deleting all its phones, and the start of
        # its word. Deleting a phone therefore leaves the number as it is.
        best = np.zeros(len(self._parents), dtype=np.int64)
        moved = np.empty_like(best)
        levels = [(best[level], self._parents[level], moved[level]) for level in self._levels[1:]]
        root = 0
        for position, phone in enumerate(ids, start=1):
            # Match or substitute the phone on an edge of the trie, or insert it at a node.
            best[0] = root
            np.take(best, self._parents, out=moved, mode="clip")
            moved[self._edges[phone]] -= EDIT
            best += EDIT
            np.minimum(best, moved, out=best)
            # Delete phones of a word, level by level from the root.
            for own, parents, deleted in levels:
                np.take(best, parents, out=deleted, mode="clip")
                np.minimum(own, deleted, out=own)
            # End a word here, or leave the phone outside all words.
            ends = best[self._ends] + self._from_root_to_ends
            end = int(ends.argmin())
            cost = (int(ends[end]) >> POSITION_BITS << POSITION_BITS) + self._penalty
            outside = boundaries[-1][0] + EDIT
            if cost <= outside:
                boundaries.append((cost, end, int(ends[end]) & START_MASK))
            else:
                boundaries.append((outside, -1, position))
            # Start a new word here, possibly with deleted phones.
            root = boundaries[-1][0] + position
            np.minimum(best, root, out=best)
        return boundaries
