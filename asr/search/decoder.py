"""Decoders by name: log-probabilities to labels, times and words."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from asr.config import option
from asr.errors import UserError, did_you_mean
from asr.search.beam import BeamSearch
from asr.search.confidence import add_confidences
from asr.search.cuda_beam import CudaSearch
from asr.search.fusion import PIECE_START, build_fusion
from asr.search.greedy import greedy_search
from asr.search.path import TokenPath, Word
from asr.search.prefix import PrefixSearch
from asr.search.words import WordSearch
from asr.text.lexicon import read_words
from asr.text.tokenizer import WORD_GAP, Tokenizer

DECODERS = ["greedy", "beam", "prefix", "cuda"]
WEIGHTED = ("beam", "prefix")  # which have weights to tune
SIZES = {"greedy": 1, "beam": 300, "prefix": 50, "cuda": 10}
LM_WEIGHT = 2.0
WORD_SCORE = -1.0

Decoder = Callable[[Tensor, Tensor], list[TokenPath]]


@dataclass(frozen=True)
class Weights:
    """What tuning varies; see `BeamConfig`."""

    lm_weight: float
    word_score: float
    size: int


@dataclass
class BeamConfig:
    """What the searches but `greedy` are told."""

    size: int | None = option(None, help="hypotheses kept in each frame; default: 300, prefix 50, cuda 10")
    threshold: float = option(100.0, help="beam: hypotheses worse than the best by more go", unit="nats")
    tokens: int = option(0, help="most probable labels tried in a frame; 0: all")
    token_threshold: float = option(
        10.0, help="prefix: labels less probable than a frame's best by more aren't tried", unit="nats"
    )
    lexicon: str = option("", help="beam: words that characters or pieces may spell; empty: those of lm")
    lm: str = option("", help="n-gram language model, ARPA or KenLM binary; empty: none")
    lm_weight: float | None = option(None, help="weight of the language model; default: tuned, or 2")
    word_score: float | None = option(
        None, help="added for each word, below 0 for fewer; default: tuned, or -1", unit="nats"
    )
    nbest: int = option(1, help="hypotheses of each utterance to write")

    def complete(self, decoder: str) -> "BeamConfig":
        """Return these options with the defaults of a decoder in place of None."""
        return replace(
            self,
            size=SIZES.get(decoder, 1) if self.size is None else self.size,
            lm_weight=LM_WEIGHT if self.lm_weight is None else self.lm_weight,
            word_score=WORD_SCORE if self.word_score is None else self.word_score,
        )

    def weights(self, decoder: str) -> Weights:
        """Return what tuning varies."""
        complete = self.complete(decoder)
        assert complete.size is not None
        assert complete.lm_weight is not None
        assert complete.word_score is not None
        return Weights(complete.lm_weight, complete.word_score, complete.size)


def search(decoder: Decoder, log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
    """Decode a batch and add the confidence of each label.

    Args:
        decoder: what `build_decoder` returns.
        log_probs_BTV: [B, T, V] log-probabilities, blank at index 0.
        lengths_B: [B] valid frames.
    """
    return [
        add_confidences(path, log_probs_TV[:length])
        for path, log_probs_TV, length in zip(
            decoder(log_probs_BTV, lengths_B), log_probs_BTV, lengths_B.tolist(), strict=True
        )
    ]


def text_of(path: TokenPath, tokenizer: Tokenizer) -> str | None:
    """Return the words that a search found, or what the labels spell; None for phones without words."""
    return tokenizer.text(path.ids) if path.words is None else path.text


def words_of(path: TokenPath, tokenizer: Tokenizer) -> list[Word] | None:
    """Return the words with the labels that each covers; None for phones without words."""
    if path.words is not None or tokenizer.unit == "phone":
        return path.words
    characters = tokenizer.unit == "character"
    words: list[Word] = []
    start = 0
    for position, symbol in enumerate([*tokenizer.tokens(path.ids), None]):
        gap = characters and symbol == WORD_GAP
        if symbol is None or gap or (not characters and symbol.startswith(PIECE_START)):
            if text := tokenizer.text(path.ids[start:position]):
                words.append(Word(text, start, position))
            start = position + gap
    return words


def build_decoder(name: str, tokenizer: Tokenizer, beam: BeamConfig) -> Decoder:
    """Return a decoder.

    Args:
        name: `greedy`: the best label of each frame. `beam`: words of a lexicon only. `prefix`: the most
            probable labels, any words. `cuda`: as `prefix`, on the GPU and without language model. Words of
            phones that weren't found with words are the nearest segmentation into the lexicon.
        tokenizer: the model's.
        beam: of all but `greedy`.

    Returns:
        A function of log-probabilities [B, T, V] and lengths [B].

    Raises:
        UserError: no such decoder, an option that it doesn't take, or one that needs words or a language
            model which aren't there.
    """
    if name not in DECODERS:
        raise UserError(f"decoder={name}: no such decoder{did_you_mean(name, DECODERS)}")
    if beam.lm and name not in WEIGHTED:
        raise UserError(
            f"decoder={name} takes no language model, found beam.lm={beam.lm}: beam or prefix does"
        )
    weights = beam.weights(name)
    if min(weights.size, beam.nbest) < 1:
        raise UserError(f"beam.size={weights.size}, beam.nbest={beam.nbest}: expected at least 1 of each")
    match name:
        case "beam":
            return BeamSearch(
                tokenizer,
                words=read_words(beam.lexicon) if beam.lexicon else None,
                beam=weights.size,
                threshold=beam.threshold,
                tokens=beam.tokens,
                lm=beam.lm or None,
                lm_weight=weights.lm_weight,
                word_score=weights.word_score,
                nbest=beam.nbest,
            )
        case "prefix":
            search: Decoder = PrefixSearch(
                build_fusion(beam.lm, tokenizer, weights.lm_weight, weights.word_score),
                beam=weights.size,
                tokens=beam.tokens,
                token_threshold=beam.token_threshold,
                nbest=beam.nbest,
            )
        case "cuda":
            search = CudaSearch(tokenizer, beam=weights.size, nbest=beam.nbest)
        case _:
            search = greedy_search
    return (
        search if tokenizer.lexicon is None else WithWords(search, tokenizer, WordSearch(tokenizer.lexicon))
    )


def reweighted(decoder: Decoder, weights: Weights) -> Decoder:
    """Return `beam` or `prefix` with other weights; lexicon and language model are shared, not read again."""
    match decoder:
        case BeamSearch() | PrefixSearch():
            return decoder.with_weights(weights.size, weights.lm_weight, weights.word_score)
        case WithWords():
            return replace(decoder, search=reweighted(decoder.search, weights))
    raise UserError("only decoder=beam and decoder=prefix have weights")


@dataclass(frozen=True)
class WithWords:
    """A search for phones, and then the lexicon's words that are nearest to them."""

    search: Decoder
    tokenizer: Tokenizer
    segment: WordSearch

    def __call__(self, log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
        """Decode a batch."""
        return [self._with_words(path) for path in self.search(log_probs_BTV, lengths_B)]

    def _with_words(self, path: TokenPath) -> TokenPath:
        words = self.segment(self.tokenizer.tokens(path.ids))
        return replace(
            path, words=words, alternatives=[self._with_words(other) for other in path.alternatives]
        )
