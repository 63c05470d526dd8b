import itertools
import random

import pytest
from torchaudio.functional import edit_distance

from asr.search.path import Word
from asr.search.words import WordSearch
from asr.text.lexicon import Lexicon

PENALTY = 0.1  # of a word, in edits


def brute_force_cost(lexicon: Lexicon, phones: list[str]) -> float:
    """Return the least cost over all sequences of pronunciations that can be optimal.

    In an optimal sequence every word covers at least one recognised phone, so there are at most as many words
    as phones.
    """
    said = [phones for pronunciations in lexicon.pronunciations.values() for phones in pronunciations]
    return min(
        edit_distance(phones, list(itertools.chain(*words))) + PENALTY * count
        for count in range(len(phones) + 1)
        for words in itertools.product(said, repeat=count)
    )


def cost_of(lexicon: Lexicon, phones: list[str], words: list[Word]) -> float:
    """Return the cost of a segmentation, computed from its spans."""
    covered = sum(word.end - word.start for word in words)
    return (len(phones) - covered) + sum(
        PENALTY
        + min(
            edit_distance(phones[word.start : word.end], said) for said in lexicon.pronunciations[word.word]
        )
        for word in words
    )


def random_lexicon(rng: random.Random) -> Lexicon:
    pronunciations: dict[str, list[tuple[str, ...]]] = {}
    for word in "uvw"[: rng.randint(1, 3)]:
        count = rng.randint(1, 2)
        pronunciations[word] = [tuple(rng.choices("abc", k=rng.randint(1, 4))) for _ in range(count)]
    return Lexicon(pronunciations)


def test_the_cost_of_the_segmentation_equals_brute_force():
    rng = random.Random(0)
    for _ in range(150):
        lexicon = random_lexicon(rng)
        entries = sum(map(len, lexicon.pronunciations.values()))
        phones = rng.choices(lexicon.phones, k=rng.randint(0, 4 if entries > 3 else 6))
        words = WordSearch(lexicon)(phones)
        least = brute_force_cost(lexicon, phones)
        assert cost_of(lexicon, phones, words) == pytest.approx(least, abs=1e-9)
        ends = [0, *(word.end for word in words)]
        assert all(end <= word.start < word.end for end, word in zip(ends, words, strict=False))


LEXICON = Lexicon(
    {
        "THE": [("DH", "AH"), ("DH", "IY")],
        "CAT": [("K", "AE", "T")],
        "CATS": [("K", "AE", "T", "S")],
        "SAT": [("S", "AE", "T")],
        "KAT": [("K", "AE", "T")],
        "A": [("AH",)],
    }
)


def spoken(text: str) -> list[tuple[str, int, int]]:
    return [(word.word, word.start, word.end) for word in WordSearch(LEXICON)(text.split())]


def test_exact_phones_match_any_pronunciation_and_the_first_homophone():
    assert spoken("DH IY K AE T S AE T") == [("THE", 0, 2), ("CAT", 2, 5), ("SAT", 5, 8)]


def test_substitutions_deletions_and_insertions():
    assert spoken("DH AH K AH T") == [("THE", 0, 2), ("CAT", 2, 5)]
    assert spoken("DH AH K T") == [("THE", 0, 2), ("CAT", 2, 4)]
    assert spoken("DH AH K S AE T S") == [("THE", 0, 2), ("CATS", 2, 7)]


def test_noise_belongs_to_no_word():
    assert spoken("NSN DH AH SPN K AE T NSN") == [("THE", 1, 3), ("CAT", 4, 7)]
    assert spoken("NSN SPN") == []
    assert spoken("") == []


def test_a_stray_phone_stays_outside_all_words():
    """Leaving the phone out is cheaper than any word that covers it."""
    lexicon = Lexicon({"CAT": [("K", "AE", "T")]})
    assert WordSearch(lexicon)(["T"]) == []
    assert WordSearch(lexicon)(["T", "K", "AE", "T"]) == [Word("CAT", 1, 4)]


def test_a_long_text_is_segmented_exactly():
    rng = random.Random(1)
    vocabulary = {"".join(w): [w] for w in itertools.product("bdgkpt", "aeiou", "lmnr", "fsz")}
    lexicon = Lexicon(vocabulary)
    words = rng.choices(sorted(vocabulary), k=600)
    found = WordSearch(lexicon)([phone for word in words for phone in word])
    assert [word.word for word in found] == words
    assert [word.start for word in found] == list(range(0, 2400, 4))
