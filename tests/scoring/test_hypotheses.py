import dataclasses
import json

import pytest
from hypothesis_files import write_hypotheses

from asr.errors import UserError
from asr.scoring.hypotheses import Hypothesis, hypothesis_line, read_hypotheses, write_decoded

ONE = Hypothesis("u1", "s1", 1.5, "größe", None, ["G", "R"], [0.0, 0.25], None, "phone")
TWO = Hypothesis("u2", "s1", 0.0, None, [], [], [], "a b", "piece")


def test_hypotheses_survive_a_round_trip(tmp_path):
    path = tmp_path / "new" / "hyp.jsonl"
    write_decoded(path.parent, hypothesis_line(ONE) + hypothesis_line(TWO), {})
    assert read_hypotheses(path) == [ONE, TWO]
    assert {entry.name for entry in path.parent.iterdir()} == {"hyp.jsonl", "decode.json"}


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "hyp.jsonl"
    write_decoded(tmp_path, hypothesis_line(ONE), {"decoder": "greedy"})
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_decoded(tmp_path, hypothesis_line(TWO), {"decoder": {"greedy"}})
    assert read_hypotheses(path) == [ONE]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 3}, "id: expected str, found 3"),
        ({"tokens": "GR"}, r"tokens: expected list\[str\], found 'GR'"),
        ({"times_s": [0.0]}, "1 times for 2 tokens"),
        ({"duration_s": -1}, "duration_s=-1: expected seconds"),
        ({"unit": "word"}, r"unit: expected Literal.*, found 'word'"),
        ({"txt": "a"}, "unknown txt"),
        ({"reference": 7}, r"reference: expected str \| None, found 7"),
        ({"text": ["go", "on"]}, r"text: expected str \| None, found \['go'"),
        ({"text": "\ud800"}, "expected JSON, found .*surrogates not allowed"),
        ({"words": [{"word": "go"}]}, "words: expected start_s, found none"),
    ],
)
def test_the_error_for_a_wrong_field_names_the_line(tmp_path, change, message):
    path = tmp_path / "hyp.jsonl"
    good = dataclasses.asdict(ONE)
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | {"id": "u2"} | change) + "\n")
    with pytest.raises(UserError, match=message) as caught:
        read_hypotheses(path)
    assert str(caught.value).startswith(f"{path}:2: ")


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"id": "x"}', "[" * 100_000])
def test_the_error_for_a_line_without_hypothesis_names_the_line(tmp_path, line):
    path = tmp_path / "hyp.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UserError, match=r"hyp.jsonl:1: expected"):
        read_hypotheses(path)


def test_errors_name_a_repeated_utterance_and_a_missing_file(tmp_path):
    path = tmp_path / "hyp.jsonl"
    write_hypotheses(path, [ONE, ONE])
    with pytest.raises(UserError, match=r"hyp.jsonl:2: utterance 'u1' is already on line 1"):
        read_hypotheses(path)
    with pytest.raises(UserError, match=r"none.jsonl: expected a file of hypotheses, found none"):
        read_hypotheses(tmp_path / "none.jsonl")
