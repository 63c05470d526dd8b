"""Exported trn, CTM and STM files have the words and utterances that we score."""

import random
import re
import string

import pytest
from score_output import scored
from test_sclite_parity import needs_sclite, report

from asr.errors import UserError
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.options import ScoreOptions
from asr.scoring.plain_files import write_ctm_and_stm
from asr.scoring.score import score
from asr.scoring.trn import write_trn

MARKS = [*"{}@();/*\\", "<O>", "<ALT_BEGIN>", ";;", "{a/b}", "(u1)", "<uh>"]


def marked(rng: random.Random) -> str:
    """Return words, some of which are markup in NIST's formats or contain it."""
    words = rng.choices("ab", k=rng.randint(1, 6))
    words += [rng.choice(MARKS) for _ in range(rng.randint(0, 3))]
    words += ["".join(rng.choices("xy" + string.punctuation, k=3)) for _ in range(rng.randint(0, 2))]
    rng.shuffle(words)
    return " ".join(words)


def exported(folder) -> list[Hypothesis]:
    """Write files of 150 utterances with random words and return them."""
    rng = random.Random(3)
    pairs = [(marked(rng), marked(rng)) for _ in range(150)]
    pairs = [(text, text if rng.random() < 0.3 else other) for text, other in pairs]
    made = [
        Hypothesis(f"u{i:03d}", f"s{i % 3}", 10.0, text, None, [], [], heard, "piece")
        for i, (text, heard) in enumerate(pairs)
    ]
    write_trn(folder, made)
    write_ctm_and_stm(folder, made)
    return made


def test_marks_in_exported_words_are_words(tmp_path):
    """`{`, `;`, `@`, `\\` and parentheses stood as they are: other words were counted, or none."""
    expected = score(exported(tmp_path), ScoreOptions(align="sclite", samples=1))
    (found,) = scored([tmp_path / "hyp.trn", tmp_path / "ref.trn"], samples=1)
    assert found.rates["wer"].counts == expected.rates["wer"].counts
    assert len(found.utterances) == 150


@needs_sclite
@pytest.mark.parametrize("formats", [("trn", "trn"), ("stm", "ctm")])
def test_sclite_counts_the_same_words(formats, tmp_path):
    counts = score(exported(tmp_path), ScoreOptions(align="sclite", samples=1)).rates["wer"].counts
    total = re.search(r"Sum +\| *150 +(\d+) *\|(.*?)\|", report(tmp_path, *formats, "rsum"))
    assert total is not None
    right = counts.length - counts.substitutions - counts.deletions
    ours = counts.length, right, counts.substitutions, counts.deletions, counts.insertions
    assert ours == (int(total[1]), *map(int, total[2].split()[:4]))


@pytest.mark.parametrize("write", [write_trn, write_ctm_and_stm])
@pytest.mark.parametrize("other", ["U1 a", "u1_a"])
def test_ids_that_sclite_takes_as_one_are_refused(write, other, tmp_path):
    made = [Hypothesis(x, "s", 1.0, "a", None, [], [], "a", "piece") for x in ("u1 a", other)]
    with pytest.raises(UserError, match=rf"utterance '{other}': expected an id .* found 'u1 a' too"):
        write(tmp_path, made)
    assert not list(tmp_path.iterdir())
