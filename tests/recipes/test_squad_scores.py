"""SQuAD 1.1: the official script's normalisation and scores, and reading of its files."""

import json
from pathlib import Path
from typing import Any

import pytest
from asr_recipes.questions.squad import (
    Question,
    best,
    exact_match,
    find_squad,
    normalise_answer,
    read_squad,
    token_f1,
)

from asr.errors import UserError


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Cat", "cat"),
        ("  an   apple\ta day ", "apple day"),
        ("U.S.", "us"),
        ("don't", "dont"),
        ("a-team", "ateam"),  # punctuation goes before articles
        ("the-boat", "theboat"),
        ("theatre another", "theatre another"),
        ("“quoted”", "“quoted”"),  # the script knows ASCII punctuation only
        ("$5,000.50", "500050"),
        ("The", ""),
        ("ÉCOLE à", "école à"),
        ("a\u00a0b", "b"),
    ],
)
def test_normalisation_is_the_official_scripts(text: str, normal: str) -> None:
    assert normalise_answer(text) == normal


def test_f1_counts_words_with_their_multiplicity() -> None:
    assert token_f1("new new york", "new york") == pytest.approx(2 * (2 / 3) / (2 / 3 + 1))
    assert token_f1("york new", "New York!") == 1.0
    assert token_f1("boston", "new york") == 0.0


def test_empty_answers_score_as_in_the_official_script() -> None:
    """Two answers that are empty after normalisation match exactly, but their F1 is 0."""
    assert exact_match("the", "a") == 1.0
    assert token_f1("the", "a") == 0.0
    assert exact_match("", "york") == token_f1("", "york") == 0.0


def test_the_best_of_several_answers_counts() -> None:
    answers = ("Saint Bernadette Soubirous", "the Virgin Mary", "Mary")
    assert best(exact_match, "mary.", answers) == 1.0
    assert best(token_f1, "Virgin", answers) == pytest.approx(2 / 3)


def article(**changes: Any) -> dict[str, Any]:
    asked = {
        "id": "q1",
        "question": " Who? ",
        "answers": [{"text": "Anna", "answer_start": 0}, {"text": "she"}],
    }
    return {"title": "x", "paragraphs": [{"context": "Anna did.", "qas": [asked | changes]}]}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_public_file_is_read(tmp_path: Path) -> None:
    two = article()
    two["paragraphs"].append({"context": "Boris.", "qas": [{**two["paragraphs"][0]["qas"][0], "id": "q2"}]})
    path = write(tmp_path / "dev-v1.1.json", {"version": "1.1", "data": [two]})
    assert find_squad(tmp_path) == path
    first, second = read_squad(path)
    assert first == Question("q1", "Who?", "Anna did.", ("Anna", "she"), 0, 0)
    assert (second.id, second.paragraph) == ("q2", 1)
    assert second.start == -1  # "Anna" isn't in "Boris."


def test_records_of_datasets_are_read(tmp_path: Path) -> None:
    answers = {"text": ["did"], "answer_start": [5]}
    rows = [{"id": str(i), "question": "Who?", "context": "did did.", "answers": answers} for i in range(2)]
    path = write(tmp_path / "validation.jsonl", "\n".join(map(json.dumps, rows)))
    assert find_squad(tmp_path) == path
    # The first "did" is taken where none starts at answer_start.
    assert read_squad(path) == [Question(str(i), "Who?", "did did.", ("did",), 0, 0) for i in range(2)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": [article(answers=[])]}, "question q1: expected at least one answer, as in SQuAD 1.1"),
        ({"data": [article(answers=None)]}, "expected at least one answer"),
        ({"data": [article(question="")]}, "paragraph 0: expected text as question"),
        ({"data": [article(), article()]}, "expected ids to be distinct, found q1 again"),
        ({"data": [{"paragraphs": 3}]}, "expected a list of objects as paragraphs, found '3'"),
        ({"data": [{"title": "x"}]}, "example 0: expected text as context, found 'None'"),
        ({"data": []}, "expected questions, found none"),
        ({"version": "1.1"}, "expected a list of examples, found 'None'"),
        ("{", "expected examples in JSON"),
    ],
)
def test_bad_files_are_one_line(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_squad(write(tmp_path / "dev.json", content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected the file squad/dev-v1.1.json, found none"):
        find_squad(tmp_path)
