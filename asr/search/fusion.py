"""Shallow fusion: the score that an n-gram language model adds to a growing label sequence."""

import copy
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.lm.arpa import read_vocabulary
from asr.lm.kneser_ney import UNKNOWN as UNKNOWN_WORD
from asr.lm.ngram import NgramModel, check_casing, is_special
from asr.text.tokenizer import PIECE_START, UNKNOWN, WORD_GAP, Tokenizer


@dataclass(frozen=True)
class Context:
    """The language model's state after a label sequence, and the sequence's unfinished word."""

    state: Any = None
    word: str = ""


class NoModel:
    """No language model; the base class of language models.

    Attributes:
        tunable: names of the weights that change the score.
        words: vocabulary of a word model.
    """

    tunable: tuple[str, ...] = ()
    words: Collection[str] = ()
    weight = 0.0
    word_score = 0.0

    def with_weights(self, weight: float, word_score: float) -> "NoModel":
        """Return a copy with other weights."""
        other = copy.copy(self)
        other.weight, other.word_score = weight, word_score
        return other

    def start(self) -> Context:
        """Return the context before the first label."""
        return Context()

    def extend(self, context: Context, label: int) -> tuple[Context, float]:
        """Return the context after a label, and the score that the label adds."""
        return context, 0.0

    def finish(self, context: Context) -> float:
        """Return the score that the end of the sequence adds."""
        return 0.0


class TokenModel(NoModel):
    """An n-gram model of labels, which adds the weighted log10 probability of each label."""

    tunable = ("lm_weight",)

    def __init__(self, path: str | Path, tokenizer: Tokenizer, weight: float) -> None:
        self._model = NgramModel(path, tokenizer.symbols)
        self.weight = weight

    def start(self) -> Context:
        """See `NoModel`."""
        return Context(self._model.start())

    def extend(self, context: Context, label: int) -> tuple[Context, float]:
        """See `NoModel`."""
        state, log10 = self._model.score(context.state, label)
        return Context(state), self.weight * log10

    def finish(self, context: Context) -> float:
        """See `NoModel`."""
        return self.weight * self._model.finish(context.state)


class WordModel(NoModel):
    """An n-gram model of words, which adds a weighted log10 probability and a constant per complete word.

    The search may spell unknown words; they have the probability of `<unk>`.
    """

    tunable = ("word_score", "lm_weight")

    def __init__(
        self,
        path: str | Path,
        tokenizer: Tokenizer,
        vocabulary: frozenset[str],
        weight: float,
        word_score: float,
    ) -> None:
        self.words = vocabulary
        words = sorted(vocabulary | {UNKNOWN_WORD})
        self._index = {word: number for number, word in enumerate(words)}
        self._model = NgramModel(path, words)
        self._symbols = tokenizer.written
        self._boundary = PIECE_START if tokenizer.unit == "piece" else WORD_GAP  # starts or separates words
        self.weight = weight
        self.word_score = word_score

    def start(self) -> Context:
        """See `NoModel`."""
        return Context(self._model.start())

    def extend(self, context: Context, label: int) -> tuple[Context, float]:
        """See `NoModel`."""
        symbol = self._symbols[label]
        if not symbol.startswith(self._boundary):
            return Context(context.state, context.word + symbol), 0.0
        state, score = self._complete(context)
        return Context(state, symbol.removeprefix(self._boundary)), score

    def finish(self, context: Context) -> float:
        """See `NoModel`."""
        state, score = self._complete(context)
        return score + self.weight * self._model.finish(state)

    def _complete(self, context: Context) -> tuple[Any, float]:
        if not context.word:
            return context.state, 0.0
        index = self._index.get(context.word, self._index[UNKNOWN_WORD])
        state, log10 = self._model.score(context.state, index)
        # With a weight of 0, words add no score, as without a model.
        return state, self.weight * log10 + self.word_score if self.weight else 0.0


def build_fusion(lm: str, tokenizer: Tokenizer, weight: float, word_score: float) -> NoModel:
    """Return the language model for a search without lexicon.

    Args:
        lm: ARPA or KenLM file of labels or words, which the vocabulary tells; empty: none.
        tokenizer: tokenizer of the recogniser.
        weight: weight of the log10 probabilities.
        word_score: score added per word, by word models with a weight only.

    Raises:
        UserError: the file can't be read or doesn't list its words, words differ in letter case, or it is a
            word model and labels are phones.
    """
    if not lm:
        return NoModel()
    vocabulary = read_vocabulary(lm)
    if vocabulary is None:
        raise UserError(f"{lm}: expected a KenLM binary with its words, found none: use the ARPA file")
    symbols = [symbol for symbol in tokenizer.symbols[1:] if symbol != UNKNOWN]
    known = {word for word in vocabulary if not is_special(word)}
    if len(known & set(symbols)) >= len(known) / 2:
        return TokenModel(lm, tokenizer, weight)
    if tokenizer.unit == "phone":
        raise UserError(
            f"{lm}: decoder=prefix with phones expects a phone model (asr lm train model=<run> …), found a "
            "word model, which needs decoder=beam"
        )
    letters = {x for symbol in tokenizer.written[1:] if symbol != UNKNOWN for x in symbol if x.isalpha()}
    check_casing(lm, frozenset("".join(known)), letters, "the model's texts")
    return WordModel(lm, tokenizer, vocabulary, weight, word_score)
