"""Perplexity and out-of-vocabulary words of a text under a language model."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asr.errors import UserError
from asr.lm.arpa import read_vocabulary
from asr.lm.ngram import NgramModel


@dataclass
class TextScore:
    """Score of a text.

    As in KenLM and SRILM, the `</s>` after each sentence counts as a prediction in both perplexities.
    """

    sentences: int = 0
    words: int = 0
    log10: float = 0.0  # log10 probability of the whole text
    unknown_log10: float = 0.0  # part of `log10` due to unknown words
    unknown: Counter[str] = field(default_factory=Counter)

    @property
    def oov(self) -> int:
        """Number of out-of-vocabulary words in the running text."""
        return sum(self.unknown.values())

    @property
    def oov_rate(self) -> float:
        """Fraction of out-of-vocabulary words, 0 … 1."""
        return self.oov / self.words

    @property
    def perplexity(self) -> float:
        """Perplexity with unknown words at the probability of `<unk>`."""
        return float(10 ** (-self.log10 / (self.words + self.sentences)))

    @property
    def known_perplexity(self) -> float:
        """Perplexity of the known words; unknown words remain in their contexts."""
        return float(10 ** (-(self.log10 - self.unknown_log10) / (self.words - self.oov + self.sentences)))


def score_text(path: str | Path, sentences: Iterable[Sequence[str]]) -> TextScore:
    """Score a text.

    Args:
        path: ARPA or KenLM file.
        sentences: words of each sentence; empty sentences are skipped.

    Raises:
        UserError: the file can't be read, or there is no text.
    """
    kept = [sentence for sentence in sentences if sentence]
    if not kept:
        raise UserError("expected text to score, found no sentence with a word")
    words = sorted({word for sentence in kept for word in sentence})
    vocabulary = read_vocabulary(path)
    model = NgramModel(path, words)
    index = {word: number for number, word in enumerate(words)}
    score = TextScore()
    for sentence in kept:
        state = model.start()
        score.sentences += 1
        score.words += len(sentence)
        for word in sentence:
            state, log10 = model.score(state, index[word])
            score.log10 += log10
            if vocabulary is not None and word not in vocabulary:
                score.unknown[word] += 1
                score.unknown_log10 += log10
        score.log10 += model.finish(state)
    return score
