"""Decoders by name."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from asr.config import check
from asr.errors import UserError, did_you_mean
from asr.search.beam import BeamSearch
from asr.search.fusion import build_fusion
from asr.search.greedy import greedy_search
from asr.search.hotwords import HotwordFusion
from asr.search.options import DECODERS, WEIGHTED, BeamConfig, Weights
from asr.search.path import Decoder
from asr.search.prefix import PrefixSearch
from asr.search.spelling import read_search_lexicon
from asr.search.words import WithWords, WordSearch
from asr.text.g2p import installed_model
from asr.text.hotwords import in_words_of, pronunciations, read_hotwords, writable
from asr.text.lexicon import read_words
from asr.text.tokenizer import PhoneTokenizer, Tokenizer


def build_decoder(name: str, tokenizer: Tokenizer, beam: BeamConfig, topology: str = "ctc") -> Decoder:
    """Return a decoder.

    Args:
        name: `greedy` (the best label of each frame), `beam` (only words of a lexicon) or `prefix` (the most
            probable label sequence). For phones, all but `beam` are followed by `WordSearch`.
        tokenizer: tokenizer of the model.
        beam: options; ignored by `greedy`.
        topology: topology of the labels.

    Returns:
        A function of log-probabilities [B, T, V] and lengths [B].

    Raises:
        UserError: the decoder is unknown, an option does not apply to it, or its words or language model are
            missing.
    """
    if name not in DECODERS:
        raise UserError(f"decoder={name}: no such decoder{did_you_mean(name, DECODERS)}")
    if beam.lm and name not in WEIGHTED:
        raise UserError(
            f"decoder={name} takes no language model, found beam.lm={beam.lm}: use beam or prefix"
        )
    check(beam, "beam.")
    weights = beam.weights(name)
    phrases = read_hotwords(beam.hotwords, beam.hotword_boost) if beam.hotwords and name in WEIGHTED else []
    hotwords = [x for x in phrases if x.boost]  # those of boost 0 are no words to add either
    words_of = tokenizer.lexicon
    match name:
        case "beam":
            words, lexicon = None, None
            if beam.lexicon and isinstance(tokenizer, PhoneTokenizer):
                lexicon = read_search_lexicon(beam.lexicon, tokenizer)
            elif beam.lexicon:
                words = read_words(beam.lexicon)
            return BeamSearch(
                tokenizer,
                words=words,
                lexicon=lexicon,
                beam=weights.size,
                tokens=beam.tokens,
                lm=beam.lm or None,
                lm_weight=weights.lm_weight,
                word_score=weights.word_score,
                hotwords=hotwords,
                nbest=beam.nbest,
                topology=topology,
            )
        case "prefix":
            fusion = build_fusion(beam.lm, tokenizer, weights.lm_weight, weights.word_score)
            given = weights.word_score != BeamConfig().weights(name).word_score
            if beam.lm and given and "word_score" not in fusion.tunable:
                raise UserError(
                    f"beam.word_score={weights.word_score:g}: has no effect with {beam.lm}, a model of labels"
                )
            if hotwords and isinstance(tokenizer, PhoneTokenizer):
                hotwords = in_words_of(hotwords, tokenizer.lexicon)
                said = pronunciations(hotwords, tokenizer.lexicon, tokenizer, installed_model())
                fusion = HotwordFusion(fusion, hotwords, tokenizer, said)
                words_of = said.merged(tokenizer.lexicon)  # of homophones, the first is found
            elif hotwords:
                fusion = HotwordFusion(fusion, writable(hotwords, tokenizer, fusion.words), tokenizer)
            search: Decoder = PrefixSearch(
                fusion,
                beam=weights.size,
                tokens=beam.tokens,
                token_threshold=beam.token_threshold,
                label_score=beam.label_score,
                nbest=beam.nbest,
                topology=topology,
            )
        case _:
            search = partial(greedy_search, topology=topology)
    return search if words_of is None else WithWords(search, tokenizer, WordSearch(words_of))


def reweighted(decoder: Decoder, weights: Weights) -> Decoder:
    """Return a `beam` or `prefix` decoder with other weights, sharing lexicon and language model."""
    match decoder:
        case BeamSearch() | PrefixSearch():
            return decoder.with_weights(weights.size, weights.lm_weight, weights.word_score)
        case WithWords():
            return replace(decoder, search=reweighted(decoder.search, weights))
    raise UserError("only decoder=beam and decoder=prefix have tunable weights")


def vocabulary(decoder: Decoder) -> Collection[str] | None:
    """Return the words that a decoder can find; None: any that the labels spell."""
    match decoder:
        case BeamSearch() | WithWords():
            return decoder.vocabulary
    return None


def tunable(decoder: Decoder) -> tuple[str, ...]:
    """Return the weights, besides the size of the beam, that change the results of a decoder."""
    match decoder:
        case BeamSearch() | PrefixSearch():
            return decoder.tunable
        case WithWords():
            return tunable(decoder.search)
    return ()
