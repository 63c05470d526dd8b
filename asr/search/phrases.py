"""Rewards for phrases in a growing sequence, by an automaton (Aho and Corasick, 1975)."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

Boosts = tuple[float, ...]  # a boost for each of the last tokens of a sequence


class Match(NamedTuple):
    """State of the automaton: the part of a phrase at the end of a sequence.

    Attributes:
        node: longest beginning of a phrase that ends the sequence, as a node of the trie.
        paid: boosts of the node's tokens that are in complete phrases.
        open: reward for phrases that may still be completed; taken back if they aren't.
    """

    node: int
    paid: Boosts
    open: float


class PhraseGraph:
    """Rewards each token that is within a phrase once, with the highest boost of the phrases that contain it.

    A token is rewarded as soon as it continues a phrase. The reward is taken back if the phrase is abandoned,
    as in the context graphs of k2 and sherpa-onnx; unlike there, overlapping phrases don't count twice. The
    numbers that `extend` and `finish` return for a sequence's tokens add up to the sequence's reward.

    Example:
        >>> graph = PhraseGraph({("new", "york"): 2.0, ("york",): 1.0})
        >>> match, first = graph.extend(graph.start, "new")
        >>> first, graph.finish(match), graph.extend(match, "york")[1], graph.extend(match, "car")[1]
        (2.0, -2.0, 2.0, -2.0)
    """

    start = Match(0, (), 0.0)

    def __init__(
        self, boosts: Mapping[tuple[Hashable, ...], float], weight: Callable[[Hashable], float] | None = None
    ) -> None:
        """Build the trie with failure links.

        Args:
            boosts: boost of each phrase, 0 or more.
            weight: factor of a token's boost; None: 1 for all.
        """
        self._weight = weight or (lambda token: 1.0)
        self._children: list[dict[Hashable, int]] = [{}]
        self._weights: list[float] = [0.0]  # weight of the token that leads to a node
        self._parents = [0]
        self._hoped: list[float] = [0.0]  # highest boost of the phrases through a node
        self._ending: list[float] = [0.0]  # boost of the phrase that ends in a node
        for phrase, boost in boosts.items():
            self._insert(phrase, boost)
        self._fails = self._failure_links()
        self._vectors: dict[int, tuple[Boosts, Boosts, Boosts]] = {0: ((), (), ())}  # by node reached

    def _insert(self, phrase: Sequence[Hashable], boost: float) -> None:
        node = 0
        for token in phrase:
            if token not in self._children[node]:
                self._children[node][token] = len(self._children)
                self._children.append({})
                self._weights.append(self._weight(token))
                self._parents.append(node)
                self._hoped.append(0.0)
                self._ending.append(0.0)
            node = self._children[node][token]
            self._hoped[node] = max(self._hoped[node], boost)
        self._ending[node] = max(self._ending[node], boost)

    def _failure_links(self) -> list[int]:
        """Return, for each node, the node of the longest proper suffix of its tokens that begins a phrase."""
        fails = [0] * len(self._children)
        level = list(self._children[0].values())
        while level:
            following = []
            for node in level:
                for token, child in self._children[node].items():
                    fails[child] = self._step(fails, fails[node], token)
                    following.append(child)
            level = following
        return fails

    def _step(self, fails: Sequence[int], node: int, token: Hashable) -> int:
        while node and token not in self._children[node]:
            node = fails[node]
        return self._children[node].get(token, 0)

    def extend(self, match: Match, token: Hashable) -> tuple[Match, float]:
        """Return the match after a token, and the reward that the token adds or, if negative, takes back."""
        node = self._step(self._fails, match.node, token)
        if node == 0:
            return self.start, -match.open
        weights, hoped, sure = self._tokens(node)
        before = (*match.paid, 0.0)[-len(sure) :]
        paid = tuple(map(max, before, sure))
        gain = sum(w * (new - old) for w, new, old in zip(weights, paid, before, strict=True))
        hope = sum(w * max(0.0, most - reward) for w, most, reward in zip(weights, hoped, paid, strict=True))
        return Match(node, paid, hope), gain + hope - match.open

    def finish(self, match: Match) -> float:
        """Return the reward of ending the sequence, at most 0: it takes back that of incomplete phrases."""
        return -match.open

    def _tokens(self, node: int) -> tuple[Boosts, Boosts, Boosts]:
        """Return the weights of a node's tokens, and their boosts in open and in complete phrases."""
        if node not in self._vectors:
            path, inner = [], node
            while inner:
                path.append(self._weights[inner])
                inner = self._parents[inner]
            _, hoped, sure = self._tokens(self._fails[node])  # for phrases that begin later
            outside = (0.0,) * (len(path) - len(hoped))
            self._vectors[node] = (
                tuple(path[::-1]),
                tuple(max(x, self._hoped[node]) for x in (*outside, *hoped)),
                tuple(max(x, self._ending[node]) for x in (*outside, *sure)),
            )
        return self._vectors[node]
