import math
from pathlib import Path

import pytest

from asr.errors import UserError
from asr.lm.perplexity import score_text

pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")

DATA = Path(__file__).parent / "data"
HELDOUT = [line.split() for line in (DATA / "heldout.txt").read_text().splitlines()]


@pytest.mark.parametrize("name", ["lmplz.trie", "lmplz.arpa.gz"])
def test_perplexity_equals_that_of_kenlms_query(name):
    score = score_text(DATA / name, [*HELDOUT, []])
    assert (score.sentences, score.words + score.sentences, score.oov) == (4, 39, 10)
    assert score.perplexity == pytest.approx(103.76902816229857, rel=1e-5)
    assert score.known_perplexity == pytest.approx(50.9559038168478, rel=1e-5)
    assert score.oov_rate == pytest.approx(10 / 35)
    assert sum(score.unknown.values()) == 10


def test_a_model_with_probability_one_half_has_perplexity_2(tmp_path):
    half = math.log10(0.5)
    unigrams = [f"{half}\t<unk>", "-99\t<s>", f"{half}\t</s>", f"{half}\ta\t0"]
    bigrams = [f"{half}\ta a"]
    lines = ["\\data\\", "ngram 1=4", "ngram 2=1", "", "\\1-grams:", *unigrams, ""]
    lines += ["\\2-grams:", *bigrams, "", "\\end\\", ""]
    (tmp_path / "half.arpa").write_text("\n".join(lines))
    score = score_text(tmp_path / "half.arpa", [["a", "a"], ["b"]])
    assert score.perplexity == pytest.approx(2)
    assert score.known_perplexity == pytest.approx(2)
    assert dict(score.unknown) == {"b": 1}


def test_an_empty_text_raises():
    with pytest.raises(UserError, match="found no sentence"):
        score_text(DATA / "lmplz.trie", [[]])
