"""The decoders by name, and their options."""

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

Search = Callable[[Tensor, Tensor], list[TokenPath]]
"""(log_probs_BTV, lengths_B) → a path per utterance."""

DECODERS = ["greedy", "beam"]


@dataclass
class SearchConfig:
    """Options of the decoders; each concerns the decoder that its help names."""

    word_penalty: float = option(0.1, help="greedy, phones to words: cost of a word", unit="edits")
    beam: int = option(300, help="beam: hypotheses kept after each frame")
    threshold: float = option(100.0, help="beam: how far below the best a hypothesis is dropped", unit="nats")
    lm: str = option(
        "", help="beam: n-gram model over the lexicon's words, ARPA or KenLM binary; empty: none"
    )
    lm_weight: float = option(2.0, help="beam: weight of the n-gram model's log10 probabilities")
    word_score: float = option(-1.0, help="beam: added per word; below 0 for fewer words", unit="nats")


def build_search(decoder: str, tokenizer: Tokenizer, config: SearchConfig | None = None) -> Search:
    """Return the decoder for a tokenizer's labels.

    With phones and a lexicon both decoders return words: `beam` searches among words from the start,
    `greedy` segments the phones that it found. Words of characters and pieces are `tokenizer.text(path.ids)`.

    Raises:
        UserError: unknown name, or a decoder that can't serve this tokenizer.
    """
    config = config or SearchConfig()
    match decoder:
        case "beam":
            return BeamSearch(
                tokenizer,
                beam=config.beam,
                threshold=config.threshold,
                lm=config.lm or None,
                lm_weight=config.lm_weight,
                word_score=config.word_score,
            )
        case "greedy" if tokenizer.unit == "phone" and tokenizer.lexicon is not None:
            return _greedy_with_words(tokenizer, WordSearch(tokenizer.lexicon, config.word_penalty))
        case "greedy":
            return greedy_search
        case _:
            raise UserError(f"unknown decoder {decoder!r}{did_you_mean(decoder, DECODERS)}")


def _greedy_with_words(tokenizer: Tokenizer, find_words: WordSearch) -> Search:
    def search(log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
        paths = greedy_search(log_probs_BTV, lengths_B)
        return [replace(path, words=find_words(tokenizer.tokens(path.ids))) for path in paths]

    return search
