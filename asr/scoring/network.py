"""Alignment of word networks as in NIST's sclite: alternatives, optional words, fragments.

Costs (SCTK, sclite options -F -D): 4 for a substitution, 3 for an insertion or deletion, 2 for omitting an
optional word, 0.001 for omitting `@`, 1 for `@` against `@`. Ties are broken as in sclite, so that the
counts of substitutions, deletions and insertions are the same.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from asr.scoring.alignment import Edit


@dataclass(frozen=True)
class NetworkWord:
    """A word of a network; leaving it out costs less if it is `optional`."""

    text: str
    optional: bool = False
    literal: bool = False  # a hyphen doesn't mark a fragment

    @classmethod
    def parse(cls, written: str) -> "NetworkWord":
        """Parse `word` or `(word)` as `sclite -F -D`, ignoring case, after `parse_literal`."""
        text = cls.parse_literal(written).text.lower()
        if text.startswith("(") and text.endswith(")"):
            return cls(text[1:-1], optional=True)
        return cls(text)

    @classmethod
    def parse_literal(cls, written: str) -> "NetworkWord":
        """Drop backslashes, a trailing `*` and everything from a semicolon on, but keep `\\;` as `;`."""
        text = re.split(r"(?<!\\);", written, maxsplit=1)[0].replace("\\", "")
        return cls(text[:-1] if len(text) > 1 and text.endswith("*") else text, literal=True)

    @classmethod
    def parse_folded(cls, written: str) -> "NetworkWord":
        """Parse a word as `sclite` without -F and -D, ignoring case."""
        return cls.parse_literal(written.lower())

    @property
    def null(self) -> bool:
        """Whether this is `@`, no word in an alternation."""
        return self.text == "@" and not self.optional

    @property
    def fragment(self) -> bool:
        """Whether this is a word fragment: `-x` or `x-`."""
        if self.literal:
            return False
        return self.text.endswith("-") or (self.text.startswith("-") and not self.optional)

    @property
    def shown(self) -> str:
        """The word as printed in alignments."""
        return f"({self.text})" if self.optional else self.text


@dataclass
class Network:
    """A word graph, stored as the predecessors of each word; position 0 is the start.

    Attributes:
        words: words of the network; words[0] is None, the start.
        before: before[i] lists the predecessors of words[i], in the order of preference.
        last: positions of the final words.
        parse: how words are read.
    """

    words: list[NetworkWord | None] = field(default_factory=lambda: [None])
    before: list[list[int]] = field(default_factory=lambda: [[]])
    last: list[int] = field(default_factory=lambda: [0])
    parse: Callable[[str], NetworkWord] = NetworkWord.parse

    def add_choices(self, choices: Iterable[Sequence[str]]) -> None:
        """Append alternatives, each a sequence of tokens as in `add_tokens`."""
        start, ends = self.last, []
        for choice in choices:
            self.last = start
            self.add_tokens(choice)
            ends += self.last
        self.last = ends

    def add_tokens(self, tokens: Sequence[str]) -> None:
        """Append words and alternations `{ a b / c }`; alternations may be nested."""
        position = 0
        while position < len(tokens):
            if tokens[position] != "{":
                self.words.append(self.parse(tokens[position]))
                self.before.append(self.last)
                self.last = [len(self.words) - 1]
                position += 1
                continue
            choices, position = _split_choices(tokens, position)
            self.add_choices(choices)


def network_of(text: str, parse: Callable[[str], NetworkWord] = NetworkWord.parse) -> Network:
    """Parse a text with markup into a network, its words with `parse`.

    >>> network = network_of("{ he is / he's } (uh) here")
    >>> [word.shown for word in network.words[1:]], network.before
    (['he', 'is', "he's", '(uh)', 'here'], [[], [0], [1], [0], [2, 3], [4]])

    Raises:
        ValueError: an alternation is unclosed or empty.
    """
    network = Network(parse=parse)
    network.add_tokens(tokens_of(text))
    return network


def tokens_of(text: str) -> list[str]:
    """Split at whitespace; in alternations, braces and slashes are separate tokens."""
    tokens: list[str] = []
    depth = 0
    for written in text.split():
        if depth == 0 and not written.startswith("{"):
            tokens.append(written)
            continue
        for token in written.replace("{", " { ").replace("}", " } ").replace("/", " / ").split():
            depth += (token == "{") - (token == "}")
            tokens.append(token)
    return tokens


def align_networks(reference: Network, hypothesis: Network) -> list[Edit]:
    """Return the best alignment of any path of the reference with any path of the hypothesis.

    `@` is not part of the result. An omitted optional word counts as correct: its edit is `=` with an empty
    counterpart.
    """
    # Least cost up to word r of the reference and word h of the hypothesis, and its predecessor.
    cost = [[0.0] * len(hypothesis.words) for _ in reference.words]
    back = [[(0, 0)] * len(hypothesis.words) for _ in reference.words]
    for r, spoken in enumerate(reference.words):
        for h, heard in enumerate(hypothesis.words):
            if not r and not h:
                continue
            # At equal cost, sclite prefers a pair, then an insertion, then a deletion.
            best = float("inf")
            if r and h:
                for r_before in reference.before[r]:
                    for h_before in hypothesis.before[h]:
                        if cost[r_before][h_before] < best:
                            best, back[r][h] = cost[r_before][h_before], (r_before, h_before)
                best = _total(best, _step(spoken, heard))
            if h:
                before = min(hypothesis.before[h], key=cost[r].__getitem__)
                inserted = _total(cost[r][before], _step(None, heard))
                if inserted < best:
                    best, back[r][h] = inserted, (r, before)
            if r:
                before = min(reference.before[r], key=lambda position: cost[position][h])
                deleted = _total(cost[before][h], _step(spoken, None))
                if deleted < best:
                    best, back[r][h] = deleted, (before, h)
            cost[r][h] = best
    ends = [(r, h) for r in reference.last for h in hypothesis.last]
    r, h = min(ends, key=lambda end: cost[end[0]][end[1]])
    edits: list[Edit] = []
    while r or h:
        r_before, h_before = back[r][h]
        spoken = reference.words[r] if r_before != r else None
        heard = hypothesis.words[h] if h_before != h else None
        edits += _edit(spoken, heard)
        r, h = r_before, h_before
    return edits[::-1]


def _edit(spoken: NetworkWord | None, heard: NetworkWord | None) -> list[Edit]:
    if (spoken is None or spoken.null) and (heard is None or heard.null):
        return []
    if heard is None:
        assert spoken is not None
        return [Edit("=", spoken.shown, "") if spoken.optional else Edit("D", spoken.shown, None)]
    if spoken is None:
        return [Edit("=", "", heard.shown) if heard.optional else Edit("I", None, heard.shown)]
    return [Edit("=" if same(spoken, heard) else "S", spoken.shown, heard.shown)]


def same(spoken: NetworkWord, heard: NetworkWord) -> bool:
    """Whether two words count as equal; a fragment equals any word with the same beginning (or end)."""
    a, b = spoken.text, heard.text
    if spoken.fragment or heard.fragment:
        for fragment, other in ((a, b), (b, a)):
            if len(fragment) > 1 and fragment.startswith("-"):
                return other.endswith(fragment[1:])
            if len(fragment) > 1 and fragment.endswith("-"):
                return other.startswith(fragment[:-1])
    return a == b


def _step(spoken: NetworkWord | None, heard: NetworkWord | None) -> float:
    if spoken is None or heard is None:
        word = spoken or heard
        assert word is not None
        return 0.001 if word.null else 2.0 if word.optional else 3.0
    if spoken.null and heard.null:
        return 1.0
    return 0.0 if same(spoken, heard) else 4.0


@cache
def _total(cost: float, step: float) -> float:
    # sclite adds in single precision, whose rounding decides some ties.
    return float(np.float32(cost) + np.float32(step))


def _split_choices(tokens: Sequence[str], start: int) -> tuple[list[list[str]], int]:
    """Return the alternatives of the alternation at tokens[start], and the position after it."""
    choices: list[list[str]] = [[]]
    depth = 0
    for position in range(start, len(tokens)):
        token = tokens[position]
        depth += (token == "{") - (token == "}")
        if depth == 0:
            filled = [choice for choice in choices if choice]
            if not filled:
                raise ValueError("expected alternatives between { and }, found none")
            return filled, position + 1
        if token == "/" and depth == 1:
            choices.append([])
        elif position > start:
            choices[-1].append(token)
    raise ValueError("expected an alternation { a / b } to end with }, found none")
