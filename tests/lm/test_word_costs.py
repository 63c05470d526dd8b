"""Copies of n-gram models with costs have the probabilities of the model, lowered by the costs."""

import itertools
from pathlib import Path

import pytest

from asr.lm.arpa import read_vocabulary, write_arpa
from asr.lm.costs import CostlyCopy
from asr.lm.kneser_ney import estimate
from asr.lm.ngram import load_kenlm
from asr.text.files import stream_lines

pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")

SENTENCES = ["the cat sat", "the dog sat on the cat", "a cat on the mat", "the mat", "on a dog"]
KNOWN = ["the", "cat", "sat", "dog", "on", "a", "mat"]
COSTS = {word: (number + 2) / 64 for number, word in enumerate([*KNOWN, "new", "new york"])}
STEP = 1 / 1024


def model(path: Path, order: int, vocabulary: list[str]) -> Path:
    write_arpa(estimate([x.split() for x in SENTENCES], order, vocabulary=vocabulary), path)
    return path


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
def test_every_word_costs_its_amount_in_every_context(order: int, name: str, tmp_path: Path) -> None:
    """Also words that the model lacks, and pairs that only the copy has."""
    path, copy = model(tmp_path / name, order, KNOWN), tmp_path / "copy.arpa"
    names = CostlyCopy(COSTS, STEP, list(COSTS)[3:]).write(stream_lines(path), copy)
    assert names is not None
    assert read_vocabulary(copy) == {*KNOWN, *names, "<unk>", "<s>", "</s>"}
    words = list(COSTS)
    given, costly = load_kenlm(path, words), load_kenlm(copy, names)
    for spoken in itertools.product(range(len(words)), repeat=3):
        states = given.start(False), costly.start(False)
        for word in spoken:
            (before, exact), (after, lower) = given.score(states[0], word), costly.score(states[1], word)
            assert 0 <= exact - lower - COSTS[words[word]] + 1e-5 < STEP + 2e-5
            states = before, after
        assert costly.finish(states[1])[1] == pytest.approx(given.finish(states[0])[1], abs=1e-5)


def test_the_order_of_words_counts(tmp_path: Path) -> None:
    """Two words with equal probabilities had the same sum in either order."""
    copy = tmp_path / "copy.arpa"
    lines = stream_lines(model(tmp_path / "model.arpa", 2, KNOWN))
    names = CostlyCopy(COSTS, STEP, ["new", "new york"]).write(lines, copy)
    assert names is not None
    lm = load_kenlm(copy, names)

    def total(*words: int) -> float:
        state, total = lm.start(False), 0.0
        for word in words:
            state, log10_probability = lm.score(state, word)
            total += log10_probability
        return total

    assert abs(total(7, 8) - total(8, 7)) > 1e-6


def test_a_model_with_unknown_words_in_ngrams_is_not_copied(tmp_path: Path) -> None:
    """An entry for each word that the model lacks would not have the probabilities of `<unk>` in context."""
    path = model(tmp_path / "model.arpa", 2, ["the", "cat"])
    assert CostlyCopy(COSTS, STEP, []).write(stream_lines(path), tmp_path / "copy.arpa") is None
    known = {word: COSTS[word] for word in ("the", "cat")}
    assert CostlyCopy(known, STEP, []).write(stream_lines(path), tmp_path / "copy.arpa") == ["the", "cat"]


def test_the_unknown_word_may_have_capitals(tmp_path: Path) -> None:
    """KenLM reads <UNK> as <unk>, but words that the model lacks had a probability of 1e-100 in the copy."""
    for vocabulary in (KNOWN, ["the", "cat"]):  # without and with n-grams of the unknown word
        path = model(tmp_path / "model.arpa", 2, vocabulary)
        found = []
        for unknown in ("<unk>", "<UNK>"):
            lines, copy = (line.replace("<unk>", unknown) for line in stream_lines(path)), tmp_path / unknown
            found.append((CostlyCopy(COSTS, STEP, ["new"]).write(lines, copy), copy.read_text()))
        assert found[0] == found[1]
