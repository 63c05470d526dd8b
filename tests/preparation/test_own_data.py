import json
from collections import Counter

import numpy as np
import pytest
import soundfile
from asr_recipes.folder import prepare as folder_recipe
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.errors import UserError
from asr.preparation.splits import hash_position, split_groups
from asr.text.normalise import normalise


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 999), unique=True, min_size=3, max_size=60), st.integers(0, 999))
def test_groups_keep_their_split_when_others_are_added(numbers, further):
    groups = [str(number) for number in numbers]
    before = split_groups(groups, 0.1, 0.2)
    assert set(before) == set(groups)
    assert {"train", "dev", "test"} >= set(before.values()) >= {"dev", "test"}
    natural = {
        group: "test" if hash_position(group) < 0.2 else "dev" if hash_position(group) < 0.3 else "train"
        for group in groups
    }
    counts = Counter(natural.values())
    if 1 <= counts["test"] < 0.4 * len(groups) - 1 and 1 <= counts["dev"] < 0.2 * len(groups) - 1:
        assert before == natural
        after = split_groups([*groups, str(further)], 0.1, 0.2)
        assert {group: after[group] for group in groups} == natural


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": "a\\ud800"}, "surrogates not allowed"),
        ({"text": "a\\u001b[2J"}, "no control characters in the transcript"),
        ({"id": "a\\nb"}, "no control characters in the id"),
        ({"speaker": "a\\tb"}, "no control characters in the speaker"),
        ({"split": "../x"}, "expected the name of a split, found '../x'"),
        ({"split": ".x"}, "expected the name of a split"),
        ({"text": ["a", "b"]}, "expected text as text"),
        ({"start": "nan"}, "expected a number as start"),
        ({"channel": 0.5}, "expected the number of a channel"),
    ],
)
def test_fields_that_can_not_be_used_are_named(change, message, tmp_path):
    """A split called `../x` put its manifest into another folder; a lone surrogate ended in a traceback."""
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 8000)
    entry = json.dumps({"audio": "a.wav", "text": "go", "split": "train"} | change).replace("\\\\", "\\")
    (tmp_path / "t.jsonl").write_text(entry)
    options = folder_recipe.Options(
        audio=str(tmp_path), transcripts=str(tmp_path / "t.jsonl"), text="none", workers=1
    )
    with pytest.raises(UserError, match=rf"t\.jsonl:1: .*{message}"):
        folder_recipe.prepare(options, tmp_path / "data" / "out")
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {
        "a.wav",
        "t.jsonl",
        "problems.tsv",
    }


def test_shares_are_met_and_positions_are_fixed():
    splits = list(split_groups([str(number) for number in range(10000)], 0.1, 0.05).values())
    assert splits.count("test") / 10000 == pytest.approx(0.05, abs=0.01)
    assert splits.count("dev") / 10000 == pytest.approx(0.1, abs=0.01)
    # Fixed values, because a changed rule would move utterances between training and test.
    assert [round(hash_position(group), 4) for group in ("ann", "ben")] == [0.2874, 0.4024]
    assert set(split_groups(["a", "b", "c"], 0, 0).values()) == {"train"}


def test_few_utterances_give_held_out_sets_of_some_size():
    """Of 30 recordings, one was held out for dev and two for test."""

    def sizes(groups: list[str], *shares: float | None) -> tuple[int, ...]:
        splits = split_groups(groups, *(shares or (None, None)))
        found = [splits[group] for group in groups]
        return tuple(found.count(name) for name in ("train", "dev", "test"))

    assert sizes([str(number) for number in range(30)]) == (20, 5, 5)
    assert sizes([str(number) for number in range(100)]) == (80, 10, 10)
    assert sizes([str(number) for number in range(30)], 0.05, 0.05) == (28, 1, 1)  # as asked for
    assert sizes([str(number % 12) for number in range(48)])[1:] == (8, 8)  # whole speakers of four
    assert sizes(["a", "b", "c"]) == (1, 1, 1)
    _, dev, test = sizes([str(number) for number in range(2000)])
    assert abs(dev - 100) < 25
    assert abs(test - 100) < 25


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("none", "ärger, don't <NOISE> “go” 3.5 rock-n-roll –"),
        ("lower", "ärger, don't <NOISE> “go” 3.5 rock-n-roll –"),
        ("words", "ärger don't <NOISE> go 3 5 rock-n-roll"),
    ],
)
def test_text_rules(rule, text):
    assert normalise(" A\u0308rger,  don't <NOISE>\t“go” 3.5 rock-n-roll –", rule) == text.replace(
        "ärger", "Ärger" if rule == "none" else "ärger"
    )


INVISIBLE = "\u00ad\u200b\u200e\u200f\u202a\u2060\ufe0f\ufeff"


@pytest.mark.parametrize("rule", ["none", "lower", "words"])
def test_invisible_marks_divide_no_words(rule):
    """Soft hyphens and zero-width spaces of web pages made two words of one, and other labels."""
    for mark in INVISIBLE:
        assert normalise(f"{mark}soft{mark}ware\u00a0is{mark} x", rule) == "software is x"


@pytest.mark.parametrize(
    ("language", "text"), [("tr", "ısparta izmir"), ("az-AZ", "ısparta izmir"), ("en", "isparta i̇zmir")]
)
def test_turkish_and_azeri_have_two_letters_i(language, text):
    for rule in ("lower", "words"):
        assert normalise("ISPARTA İZMİR".replace("Mİ", "Mi"), rule, language) == text


@pytest.mark.parametrize(
    ("language", "written", "text"),
    [
        ("ca", "La col·lecció: IL·LUSIÓ · 3·4", "la col·lecció il·lusió 3 4"),
        ("he", "צה״ל, ג׳ירפה ״שלום״", "צה״ל ג׳ירפה שלום"),
        ("fi", "EU:n laki: klo 7:30", "eu:n laki klo 7 30"),
        ("sv-SE", "SJ:s tåg", "sj:s tåg"),
        ("en", "note:this", "note this"),
        ("zh", "约翰·史密斯", "约翰 史密斯"),
    ],
)
def test_marks_between_letters_divide_no_words(language, written, text):
    """Catalan's `col·lecció`, Hebrew acronyms and Finnish cases of abbreviations were two words each."""
    assert normalise(written, "words", language) == text


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.text())
def test_normalisation_is_idempotent(text):
    for rule in ("none", "words"):
        once = normalise(text, rule)
        assert normalise(once, rule) == once
        assert "  " not in once


@pytest.mark.parametrize("text", ["हिन्दी भाषा", "தமிழ்", "สวัสดี", "می\u200cخواهم", "ве́рный i̇stanbul"])
def test_combining_marks_are_parts_of_words(text):
    assert normalise(f"«{text}»!", "words") == normalise(text, "none")


@given(st.text(alphabet="aAΣσΆİß'-9 .", max_size=12))
def test_texts_are_lower_cased_word_by_word(text):
    """Only a text with a tag is divided to keep the tag; a final sigma must not depend on that."""
    assert normalise(f"{text} <NOISE>", "lower") == f"{normalise(text, 'lower')} <NOISE>".strip()
