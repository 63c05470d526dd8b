"""Decoders by name: log-probabilities to labels, times and words."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from asr.config import option
from asr.errors import UserError, did_you_mean
from asr.search.beam import BeamSearch
from asr.search.greedy import greedy_search
from asr.search.path import TokenPath
from asr.search.words import WordSearch
from asr.text.tokenizer import Tokenizer

DECODERS = ["greedy", "beam"]

Decoder = Callable[[Tensor, Tensor], list[TokenPath]]


@dataclass
class BeamConfig:
    """Beam search with a lexicon."""

    size: int = option(300, help="hypotheses kept in each frame")
    threshold: float = option(100.0, help="hypotheses worse than the best by more are dropped", unit="nats")
    lm: str = option("", help="n-gram language model over words, ARPA or KenLM binary; empty: none")
    lm_weight: float = option(2.0, help="weight of the language model")
    word_score: float = option(-1.0, help="added for each word; below 0 for fewer words", unit="nats")


def text_of(path: TokenPath, tokenizer: Tokenizer) -> str | None:
    """Return the words that a search found, or what the labels spell; None for phones without words."""
    return tokenizer.text(path.ids) if path.words is None else path.text


def build_decoder(name: str, tokenizer: Tokenizer, beam: BeamConfig) -> Decoder:
    """Return a decoder.

    Args:
        name: `greedy`: the best label of each frame; words of phones by the nearest segmentation into
            the lexicon. `beam`: words of the lexicon only, by beam search.
        tokenizer: the model's.
        beam: of `beam`.

    Returns:
        A function of log-probabilities [B, T, V] and lengths [B].

    Raises:
        UserError: no such decoder, or one that needs a lexicon which the tokenizer lacks.
    """
    match name:
        case "greedy" if tokenizer.lexicon is None:
            return greedy_search
        case "greedy":
            return GreedyWords(tokenizer)
        case "beam":
            return BeamSearch(
                tokenizer,
                beam=beam.size,
                threshold=beam.threshold,
                lm=beam.lm or None,
                lm_weight=beam.lm_weight,
                word_score=beam.word_score,
            )
    raise UserError(f"decoder={name}: no such decoder{did_you_mean(name, DECODERS)}")


class GreedyWords:
    """Greedy search for phones, then the lexicon's words that are nearest to them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.lexicon is not None
        self.tokenizer = tokenizer
        self.search = WordSearch(tokenizer.lexicon)

    def __call__(self, log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
        """Decode a batch."""
        paths = greedy_search(log_probs_BTV, lengths_B)
        return [replace(path, words=self.search(self.tokenizer.tokens(path.ids))) for path in paths]
