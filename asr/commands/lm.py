"""`asr lm`: train n-gram language models and compute perplexities."""

import os
from collections.abc import Callable
from pathlib import Path

from asr import config
from asr.commands import language_model_action
from asr.console import Table, counted, open_console, track
from asr.errors import UserError
from asr.files import check_writable
from asr.lm.arpa import read_vocabulary, write_arpa
from asr.lm.kneser_ney import estimate
from asr.lm.ngram import check_casing, is_special, load_kenlm, warn_unknown
from asr.lm.options import PerplexityOptions, TrainOptions
from asr.lm.perplexity import TextScore, score_text
from asr.lm.text import read_sentences
from asr.recognizer import Recognizer
from asr.text.lexicon import read_words

SHOWN_UNKNOWN = 10


def main(paths: list[str], overrides: list[str]) -> None:
    """Train a language model, or score a text."""
    if language_model_action(paths) == "train":
        training = config.parse(TrainOptions, overrides)
        _check_split(training)
        train(training)
    else:
        scoring = config.parse(PerplexityOptions, overrides)
        _check_split(scoring)
        score(scoring)


def _check_split(options: TrainOptions | PerplexityOptions) -> None:
    """Raise UserError if `split` is given, but no text is a prepared folder."""
    if not any(Path(source).is_dir() for source in _sources(options.text)):
        config.refuse(options, ["split"], f"with text={options.text}, only with a prepared folder")


def train(options: TrainOptions) -> None:
    """Estimate an n-gram model, write it and print a summary."""
    sources = _sources(options.text)
    if not options.out:
        raise UserError("asr lm train needs out=<file.arpa>, found none")
    if not Path(options.out).name.endswith((".arpa", ".arpa.gz")):
        raise UserError(f"out={options.out}: expected a name that ends in .arpa or .arpa.gz")
    check_writable(options.out)
    if options.model and options.lexicon:
        raise UserError(
            f"lexicon={options.lexicon}: expected none with model=, because the recogniser's labels are the "
            "vocabulary"
        )
    spell: Callable[[list[str]], list[str]] = list
    vocabulary = read_words(options.lexicon) if options.lexicon else None
    if options.model:
        tokenizer = Recognizer.load(options.model).tokenizer
        vocabulary = tokenizer.symbols[1:]

        def labels_of(words: list[str]) -> list[str]:
            return tokenizer.tokens(tokenizer.encode(" ".join(words)))

        spell = labels_of

    sentences = map(spell, read_sentences(sources, options.split))
    model = estimate(track(sentences, "reading text"), options.order, vocabulary)
    write_arpa(model, options.out)
    load_kenlm(options.out, [])  # raises if KenLM can't read the file
    rows = [
        (str(order), f"{len(ngrams):,}", *(f"{value:.3f}" for value in ngrams.discounts))
        for order, ngrams in enumerate(model.tables, start=1)
    ]
    columns = ("n-grams", "number", "D1", "D2", "D3+")
    open_console().print(Table.of(options.out, columns, rows, numbers=False))
    print(
        f"{counted(model.sentences, 'sentence')}, {counted(model.tokens, 'word')}, "
        f"{len(model.vocabulary) - 3:,} distinct"
        + (f", {model.unknown:,} outside the lexicon" if vocabulary else "")
    )
    if fallback := [order for order, ngrams in enumerate(model.tables, 1) if not ngrams.estimated]:
        print(
            f"order {', '.join(map(str, fallback))}: too few counts to estimate discounts; "
            "fixed discounts were used"
        )
    if options.heldout:
        heldout = map(spell, read_sentences(_sources(options.heldout), "dev"))
        _print_score(options.heldout, score_text(options.out, heldout))


def score(options: PerplexityOptions) -> None:
    """Print the perplexity and the out-of-vocabulary words of a text."""
    if not options.lm:
        raise UserError("asr lm score needs lm=<ARPA or KenLM file>, found none")
    sentences = list(read_sentences(_sources(options.text), options.split))
    vocabulary = read_vocabulary(options.lm)
    check_casing(options.lm, vocabulary, {word for words in sentences for word in words}, "the text")
    if options.lexicon:
        words = read_words(options.lexicon)
        check_casing(options.lm, vocabulary, words, "the lexicon")
        warn_unknown(options.lm, vocabulary, words, "the lexicon")
    result = score_text(options.lm, sentences)
    size = f"{os.path.getsize(options.lm):,} bytes"
    known = [word for word in vocabulary or [] if not is_special(word)]
    print(f"{options.lm}: {size}" + ("" if vocabulary is None else f", {counted(len(known), 'word')}"))
    _print_score(options.text, result)


def _print_score(name: str, result: TextScore) -> None:
    print(
        f"{name}: {counted(result.sentences, 'sentence')}, {counted(result.words, 'word')}, perplexity "
        f"{result.perplexity:.2f} ({result.known_perplexity:.2f} without unknown words), "
        f"{counted(result.oov, 'unknown word')} ({100 * result.oov_rate:.2f} %)"
    )
    if result.unknown:
        shown = ", ".join(f"{word} ×{count}" for word, count in result.unknown.most_common(SHOWN_UNKNOWN))
        more = len(result.unknown) - SHOWN_UNKNOWN
        print(f"  unknown: {shown}" + (f" and {more} more" if more > 0 else ""))


def _sources(text: str) -> list[str]:
    sources = [source.strip() for source in text.strip("[]").split(",") if source.strip()]
    if not sources:
        raise UserError("asr lm needs text=<text file, manifest or prepared folder>, found none")
    return sources
