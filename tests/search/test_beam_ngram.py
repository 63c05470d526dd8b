"""Lexicon beam search with a word bigram, against all output sequences and their words."""

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from asr.losses.options import TOPOLOGIES
from asr.losses.topology import output_count
from asr.search.beam import BeamSearch
from asr.search.decoder import Weights
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import CharacterTokenizer, PhoneTokenizer, Tokenizer

pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")

FRAMES, LM_WEIGHT, WORD_SCORE = 5, 1.5, -0.4
# As phones, b and bb are homophones. The bigram lacks aab.
SPELLINGS = {
    "phone": {"ab": "AB", "b": "B", "bb": "B", "aab": "AAB"},
    "character": {"ab": "ab", "b": "b", "bb": "bb", "aab": "aab"},
}
# log10 probabilities, and back-off weights of unigrams.
UNIGRAMS = {
    "<unk>": (-1.5, 0.0),
    "<s>": (-99.0, -0.2),
    "</s>": (-0.9, 0.0),
    "ab": (-0.5, -0.6),
    "b": (-0.8, -0.1),
    "bb": (-1.1, -0.3),
}
BIGRAMS = {("<s>", "b"): -1.4, ("b", "ab"): -0.1, ("b", "b"): -2.0, ("ab", "bb"): -0.3, ("bb", "</s>"): -0.2}

Words = tuple[str, ...]


def write_bigram(path: Path) -> Path:
    unigrams = [f"{log10}\t{word}\t{backoff}" for word, (log10, backoff) in UNIGRAMS.items()]
    bigrams = [f"{log10}\t{' '.join(words)}" for words, log10 in BIGRAMS.items()]
    counts = ["\\data\\", f"ngram 1={len(unigrams)}", f"ngram 2={len(bigrams)}"]
    lines = [*counts, "", "\\1-grams:", *unigrams, "", "\\2-grams:", *bigrams, "", "\\end\\", ""]
    path.write_text("\n".join(lines))
    return path


def log10_probability(words: Words) -> float:
    total, before = 0.0, "<s>"
    for word in (*words, "</s>"):
        word = word if word in UNIGRAMS else "<unk>"
        backed_off = UNIGRAMS[before][1] + UNIGRAMS[word][0]
        total += BIGRAMS.get((before, word), backed_off)
        before = word
    return total


def tokenizer_of(unit: str) -> Tokenizer:
    if unit == "character":
        return CharacterTokenizer.train(list(SPELLINGS[unit]))
    return PhoneTokenizer(Lexicon({word: [tuple(phones)] for word, phones in SPELLINGS[unit].items()}))


def random_log_probs(tokenizer: Tokenizer, topology: str, seed: int) -> Tensor:
    """Return random log-probabilities, [T, O], whose best path the search can find.

    With `hmm`, a gap's two outputs are equal: to the search, a gap is one label. With `ctc`, no phone is less
    probable than blank: flashlight could not stay on the last phone of a word (see `held_log_probs`).
    """
    generator = torch.Generator().manual_seed(seed)
    V = len(tokenizer)
    scores = 2 * torch.randn(FRAMES, output_count(topology, V), generator=generator)
    if topology == "ctc" and tokenizer.unit == "phone":
        scores[:, 0] = scores.amin(dim=1) - 0.1
    if topology == "hmm" and tokenizer.unit == "character":
        gap = tokenizer.symbols.index("|")
        scores[:, gap + V - 1] = scores[:, gap]
    return scores.log_softmax(dim=1)


def spelled(outputs: tuple[int, ...], topology: str, V: int) -> tuple[int, ...] | None:
    """Return the labels that an output sequence spells; None if the search has no such sequence.

    With `hmm`, the search allows silence between the first frame of a label and the next ones.
    """
    if topology == "ctc":
        return tuple(label for label, _ in itertools.groupby(outputs) if label)
    labels: list[int] = []
    inside, first = False, False
    for output in outputs:
        if output >= V:
            if not inside or labels[-1] != output - V + 1:
                return None
            first = False
        elif output:
            labels.append(output)
            inside = first = True
        else:
            inside = first
    return tuple(labels)


def segmentations(text: str, unit: str) -> list[Words]:
    """Return all sequences of words that spell a text; every word of characters ends with a gap."""
    text = text.lstrip("|")
    if not text:
        return [()]
    end = "|" if unit == "character" else ""
    return [
        (word, *words)
        for word, symbols in SPELLINGS[unit].items()
        if text.startswith(symbols + end)
        for words in segmentations(text[len(symbols + end) :], unit)
    ]


def acoustic_scores(log_probs_TO: Tensor, tokenizer: Tokenizer, topology: str) -> dict[Words, float]:
    """Return the log-probability of the best output sequence of all sequences of words."""
    V, rows = len(tokenizer), log_probs_TO.tolist()
    in_words = [label for label, symbol in enumerate(tokenizer.symbols) if symbol in "AB|ab"]
    outputs = [0, *in_words, *(label + V - 1 for label in in_words if topology == "hmm")]
    best: dict[str, float] = {}
    for path in itertools.product(outputs, repeat=FRAMES):
        labels = spelled(path, topology, V)
        if labels is not None:
            text = "".join(tokenizer.tokens(labels)) + ("|" if tokenizer.unit == "character" else "")
            score = sum(row[output] for row, output in zip(rows, path, strict=True))
            best[text] = max(score, best.get(text, score))
    scores: dict[Words, float] = {}
    for text, score in best.items():
        for words in segmentations(text, tokenizer.unit):
            scores[words] = max(score, scores.get(words, score))
    return scores


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("unit", SPELLINGS)
def test_the_best_words_and_their_score_include_the_bigram(unit: str, topology: str, tmp_path: Path) -> None:
    """Homophones, a word that the bigram lacks, seen bigrams and back-off, start and end of the sentence."""
    tokenizer = tokenizer_of(unit)
    search = BeamSearch(
        tokenizer,
        words=list(SPELLINGS[unit]) if unit == "character" else None,
        beam=1000,
        threshold=1e6,
        lm=write_bigram(tmp_path / "bigram.arpa"),
        lm_weight=LM_WEIGHT,
        word_score=WORD_SCORE,
        topology=topology,
    )
    changed = 0
    for seed in range(8):
        log_probs = random_log_probs(tokenizer, topology, seed)
        acoustic = acoustic_scores(log_probs, tokenizer, topology)
        scores = {
            words: score + LM_WEIGHT * log10_probability(words) + WORD_SCORE * len(words)
            for words, score in acoustic.items()
        }
        best = max(scores, key=scores.__getitem__)
        (found,) = search(log_probs[None], torch.tensor([FRAMES]))
        assert tuple(word.word for word in found.words or ()) == best
        assert found.score == pytest.approx(scores[best], abs=1e-3)
        spelling = "".join(tokenizer.tokens(found.ids)).replace("|", "")
        assert spelling == "".join(SPELLINGS[unit][word] for word in best)
        changed += best != max(acoustic, key=lambda words: acoustic[words] + WORD_SCORE * len(words))
    assert changed >= 3  # otherwise the bigram would decide too little


@pytest.mark.parametrize("nbest", [1, 5])
@pytest.mark.parametrize("unit", SPELLINGS)
def test_a_language_model_of_weight_0_changes_nothing(unit: str, nbest: int, tmp_path: Path) -> None:
    """Its homophones and best scores still guided the search: hypotheses and scores were others."""
    tokenizer = tokenizer_of(unit)
    words = list(SPELLINGS[unit]) if unit == "character" else None
    options = {"words": words, "beam": 4, "nbest": nbest, "word_score": WORD_SCORE}
    lm = write_bigram(tmp_path / "bigram.arpa")
    without = BeamSearch(tokenizer, **options)
    weightless = [BeamSearch(tokenizer, **options, lm=lm, lm_weight=weight) for weight in (0.0, 1.5)]
    weightless[1] = weightless[1].with_weights(Weights(0.0, WORD_SCORE, 4))
    for seed in range(8):
        log_probs = random_log_probs(tokenizer, "ctc", seed)[None]
        expected = without(log_probs, torch.tensor([FRAMES]))
        for search in weightless:
            found = search(log_probs, torch.tensor([FRAMES]))
            assert found == expected
            assert found[0].score == expected[0].score
            assert found[0].alternatives == expected[0].alternatives
