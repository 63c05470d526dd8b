"""Perplexity of a text, and the words of it that a language model doesn't know."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asr.errors import UserError
from asr.lm.ngram import NgramModel


@dataclass
class TextScore:
    """What a model makes of a text.

    Sentences end with `</s>`, which counts as a prediction in both perplexities, as in KenLM and SRILM.
    """

    sentences: int = 0
    words: int = 0
    log10: float = 0.0  # of the whole text, unknown words included
    unknown_log10: float = 0.0  # the unknown words' part of it
    unknown: Counter[str] = field(default_factory=Counter)

    @property
    def oov(self) -> int:
        """Running words that the model doesn't know."""
        return sum(self.unknown.values())

    @property
    def oov_rate(self) -> float:
        """Share of unknown words among all, 0 … 1."""
        return self.oov / self.words

    @property
    def perplexity(self) -> float:
        """With unknown words at the probability of `<unk>`."""
        return float(10 ** (-self.log10 / (self.words + self.sentences)))

    @property
    def known_perplexity(self) -> float:
        """Without the unknown words' own probabilities; they remain in the contexts of others."""
        return float(10 ** (-(self.log10 - self.unknown_log10) / (self.words - self.oov + self.sentences)))


def score_text(path: str | Path, sentences: Iterable[Sequence[str]]) -> TextScore:
    """Score a text.

    Args:
        path: ARPA or KenLM file.
        sentences: words of each; empty ones are passed over.

    Raises:
        UserError: the file can't be read, or there is no text.
    """
    kept = [sentence for sentence in sentences if sentence]
    if not kept:
        raise UserError("expected text to score, found no sentence with a word")
    words = sorted({word for sentence in kept for word in sentence})
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
            if model.vocabulary is not None and word not in model.vocabulary:
                score.unknown[word] += 1
                score.unknown_log10 += log10
        score.log10 += model.finish(state)
    return score
