"""`asr score hotwords=`: recall and false alarms of listed words, and the error rate of the others."""

import json
from pathlib import Path

import pytest
from hypothesis_files import write_hypotheses

from asr.cli import main
from asr.scoring.hypotheses import Hypothesis


def test_each_error_counts_for_the_word_that_was_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anna is found once, missed once, and heard twice where she wasn't said: for `and`, and for nothing."""
    pairs = [("anna saw bob", "Anna saw"), ("and anna", "anna ann"), ("go on", "anna go on an")]
    write_hypotheses(
        tmp_path / "hyp.jsonl",
        [
            Hypothesis(str(n), "s", 1.0, said, [], [], [], heard, "character")
            for n, (said, heard) in enumerate(pairs)
        ],
    )
    (tmp_path / "names.txt").write_text("Anna\t3\nBob Smith\n")
    assert main(["score", str(tmp_path), f"hotwords={tmp_path / 'names.txt'}"]) == 0
    found = json.loads((tmp_path / "score.json").read_text())["hotwords"]
    assert (found["spoken"], found["recognised"], found["false_alarms"]) == (3, 1, 2)
    assert found["others"] == {"substitutions": 1, "deletions": 0, "insertions": 1, "length": 4}
    expected = "recall 33.33 % (1 of 3), 2 false alarms; WER of other words 50.00 % (2 of 4)"
    assert expected in capsys.readouterr().out
