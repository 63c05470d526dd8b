"""Rewards for hotwords in a search, in addition to the scores of its language model."""

import itertools
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

from asr.search.fusion import Context, NoModel
from asr.search.phrases import Match, PhraseGraph
from asr.text.hotwords import Hotword
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import PIECE_START, UNKNOWN, WORD_GAP, Tokenizer
from asr.text.unspaced import is_unspaced

MOST_PRONUNCIATIONS = 16  # maximum number for a phrase, whose words may have several each
CACHED = 100_000  # number of cached steps, about 30 MB
BOUNDARY = " "  # token between words, and at both ends of a text


class HotwordFusion(NoModel):
    """A language model that also rewards the letters or phones of hotwords.

    Characters and pieces are read letter by letter, so that a phrase counts in any segmentation, but only as
    whole words; in scripts without spaces, anywhere. Phones have no word boundaries.

    Args:
        inner: language model.
        hotwords: phrases, as returned by `writable` or `in_words_of`.
        tokenizer: tokenizer of the model.
        lexicon: pronunciations of the hotwords' words; for phones only.
    """

    def __init__(
        self,
        inner: NoModel,
        hotwords: Sequence[Hotword],
        tokenizer: Tokenizer,
        lexicon: Lexicon | None = None,
    ) -> None:
        self._inner = inner
        self._bounded = lexicon is None
        boosts: dict[tuple[Hashable, ...], float] = {}
        for hotword in hotwords:
            for tokens in _tokens(hotword, tokenizer, lexicon):
                boosts[tokens] = max(boosts.get(tokens, 0.0), hotword.boost)
        self._graph = PhraseGraph(boosts, lambda token: float(token != BOUNDARY))
        self._tokens = [_read(symbol, tokenizer) for symbol in tokenizer.symbols]
        self._after = lru_cache(CACHED)(self._read_label)  # hypotheses often repeat the same step
        self.tunable = inner.tunable
        self.weight, self.word_score = inner.weight, inner.word_score

    def with_weights(self, weight: float, word_score: float) -> "HotwordFusion":
        """See `NoModel`."""
        other: Any = super().with_weights(weight, word_score)
        other._inner = self._inner.with_weights(weight, word_score)
        return other

    def start(self) -> Context:
        """See `NoModel`."""
        match = self._graph.start
        if self._bounded:
            match, _ = self._graph.extend(match, BOUNDARY)
        return Context((self._inner.start(), match, False))

    def extend(self, context: Context, label: int) -> tuple[Context, float]:
        """See `NoModel`."""
        inner, match, within = context.state  # within: whether a word has begun
        inner, score = self._inner.extend(inner, label)
        match, within, reward = self._after(match, within, label)
        return Context((inner, match, within)), score + reward

    def finish(self, context: Context) -> float:
        """See `NoModel`."""
        inner, match, within = context.state
        reward = 0.0
        if self._bounded and within:
            match, reward = self._graph.extend(match, BOUNDARY)
        return self._inner.finish(inner) + (reward + self._graph.finish(match))

    def _read_label(self, match: Match, within: bool, label: int) -> tuple[Match, bool, float]:
        """Return the match after a label, whether a word has begun, and the reward."""
        reward = 0.0
        for token in self._tokens[label]:
            if within or token != BOUNDARY:  # a second boundary in a row changes nothing
                match, added = self._graph.extend(match, token)
                reward += added
            within = token != BOUNDARY
        return match, within, reward


def _tokens(hotword: Hotword, tokenizer: Tokenizer, lexicon: Lexicon | None) -> list[tuple[str, ...]]:
    """Return the token sequences of a phrase: its letters, or its phones, for each pronunciation."""
    if lexicon is not None:
        said = itertools.product(*(lexicon.pronunciations[word] for word in hotword.words))
        some = itertools.islice(said, MOST_PRONUNCIATIONS)
        return [tuple(itertools.chain.from_iterable(phones)) for phones in some]
    tokens: list[str] = []
    for word in hotword.words:
        letters = [x for i in tokenizer.encode(word) for x in _read(tokenizer.symbols[i], tokenizer)]
        tokens += [BOUNDARY, *(x for x in letters if x != BOUNDARY)]
    return [
        (
            *tokens[is_unspaced(hotword.words[0][0]) :],
            *([] if is_unspaced(hotword.words[-1][-1]) else [BOUNDARY]),
        )
    ]


def _read(symbol: str, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the tokens of a label: its letters and boundaries, or the phone."""
    if tokenizer.unit == "phone" or symbol == UNKNOWN:
        return (symbol,)
    boundary = PIECE_START if tokenizer.unit == "piece" else WORD_GAP
    return tuple(BOUNDARY if x == boundary else x for x in symbol)


class WordRewards:
    """Rewards for the words of hotwords, for a search of words.

    Args:
        hotwords: phrases.
        words: words that may be recognised, by index.
        lengths: number of letters or phones of each word, which scales its reward.
    """

    def __init__(self, hotwords: Sequence[Hotword], words: Sequence[str], lengths: Sequence[int]) -> None:
        index = {word: number for number, word in enumerate(words)}
        boosts: dict[tuple[Hashable, ...], float] = {}
        for hotword in hotwords:
            numbers = tuple(index[word] for word in hotword.words)
            boosts[numbers] = max(boosts.get(numbers, 0.0), hotword.boost)
        self._graph = PhraseGraph(boosts, lambda number: float(lengths[number]))  # type: ignore[call-overload]

    def of(self, words: Sequence[int]) -> float:
        """Return the reward of a sentence."""
        match, total = self._graph.start, 0.0
        for word in words:
            match, added = self._graph.extend(match, word)
            total += added
        return total + self._graph.finish(match)

    def added_to(self, lm: Any, weight: float) -> Any:
        """Return flashlight's language model with the rewards added, divided by its weight."""
        from flashlight.lib.text.decoder import LM

        graph = self._graph

        class Rewarding(LM):
            def start(self, start_with_nothing: bool) -> Any:
                state = lm.start(start_with_nothing)
                self._matches = {state: graph.start}
                self._scored: dict[tuple[Any, int], tuple[Any, float]] = {}
                return state

            def score(self, state: Any, word: int) -> tuple[Any, float]:
                if (known := self._scored.get((state, word))) is not None:
                    return known
                after, log10_probability = lm.score(state, word)
                # flashlight has a state for each word sequence, so each state has a single match.
                self._matches[after], reward = graph.extend(self._matches[state], word)
                self._scored[state, word] = scored = after, log10_probability + reward / weight
                return scored

            def finish(self, state: Any) -> tuple[Any, float]:
                after, log10_probability = lm.finish(state)
                return after, log10_probability + graph.finish(self._matches[state]) / weight

        return Rewarding()
