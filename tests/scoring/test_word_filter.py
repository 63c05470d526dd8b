import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis_files import write_hypotheses

from asr.errors import UserError
from asr.scoring import run as command
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.word_filter import WordFilterRules, rules_beside

RULES = WordFilterRules(drop=["<NOISE>", "<UNK>"], delete=[":", "*"], replace={"COMPAIGN": "CAMPAIGN"})


@pytest.mark.parametrize(
    ("words", "scored"),
    [
        ("PRICES ROSE", "PRICES ROSE"),
        ("<NOISE> PRICES <UNK> ROSE <NOISE>", "PRICES ROSE"),
        ("PR:ICES *ROSE*", "PRICES ROSE"),
        (": PRICES *", "PRICES"),
        ("COMPAIGN COMPAIGNS", "CAMPAIGN CAMPAIGNS"),
        ("C:OMPAIGN", "CAMPAIGN"),
        ("<NOISE>", ""),
    ],
)
def test_rules_apply_in_order(words: str, scored: str) -> None:
    assert RULES(words.split()) == scored.split()


def test_rules_survive_a_round_trip(tmp_path: Path) -> None:
    assert rules_beside(tmp_path / "dev.cuts.jsonl.gz") is None
    RULES.save(tmp_path / "scoring.json")
    assert rules_beside(tmp_path / "dev.cuts.jsonl.gz") == RULES


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"dorp": []}', '{"drop": "<NOISE>"}', '{"delete": [""]}', '{"replace": {"": "x"}}']
)
def test_the_error_for_broken_rules_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "scoring.json").write_text(text)
    with pytest.raises(UserError, match=r"scoring\.json: (expected|scoring rules)"):
        rules_beside(tmp_path / "dev.cuts.jsonl.gz")


def test_asr_score_applies_the_rules_in_decode_json(tmp_path: Path) -> None:
    """The rules apply to both reference and hypothesis; without them every mark is an error."""
    texts = {"reference": "THE COMPAIGN <NOISE> F:ELL", "text": "<UNK> THE CAMPAIGN FELL *"}
    rest = {"reference_tokens": None, "tokens": [], "times_s": [], "unit": "character"}
    write_hypotheses(tmp_path / "hyp.jsonl", [Hypothesis("u1", "s", 1.0, **texts, **rest)])
    (tmp_path / "decode.json").write_text(json.dumps({"decode_s": 1.0, "word_filter": asdict(RULES)}))
    [filtered] = command.score_paths([tmp_path], command.ScoreOptions(details=False))
    assert (filtered.rates["wer"].rate, filtered.rates["wer"].counts.length) == (0.0, 3)
    assert json.loads((tmp_path / "score.json").read_text())["word_filter"] == asdict(RULES)
    [as_written] = command.score_paths([tmp_path], command.ScoreOptions(details=False, word_filter=False))
    assert (as_written.rates["wer"].rate, as_written.rates["wer"].counts.length) == (1.0, 4)
    assert "word_filter" not in json.loads((tmp_path / "score.json").read_text())
