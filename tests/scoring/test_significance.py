import itertools
import json
import math
import random

import jiwer
import numpy as np
import pytest
from hypothesis_files import write_hypotheses
from score_output import printed, scored

from asr.errors import UserError
from asr.scoring.alignment import align_sclite
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.score import UtteranceScore, by_length, confusions
from asr.scoring.significance import bootstrap_difference, matched_pairs, segment_errors
from asr.scoring.stm import read_stm
from asr.scoring.trn import ident_key, read_trn
from asr.text.tokenizer import Unit


@pytest.mark.parametrize(
    ("first", "second", "segments"),
    [
        ("a b c d e f", "a b c d e f", []),
        ("a x c y e f", "a b c d e f", [(2, 0)]),  # one right word doesn't separate two errors
        ("a x c d z f", "a b c d e f", [(1, 0), (1, 0)]),
        ("x b c d e f", "a b c d y f", [(1, 0), (0, 1)]),
        ("a b i c d e f", "a b c j d e f", [(1, 1)]),  # right words around an insertion are not consecutive
        ("a b c d e f i", "a b c d e f j k", [(1, 2)]),
        ("", "a b c d e f", [(6, 0)]),
    ],
)
def test_segments_end_at_two_words_right_in_both_systems(first, second, segments):
    words = ["a", "b", "c", "d", "e", "f"]
    assert segment_errors(align_sclite(words, first.split()), align_sclite(words, second.split())) == segments


def test_matched_pairs_on_a_worked_example():
    """The differences 1, 1, −1, 1 have mean 0.5 and standard deviation 1, so z = 1."""
    words = list("abcd")
    right = align_sclite(words, words)
    wrong = align_sclite(words, list("xbcd"))
    test = matched_pairs([wrong, wrong, right, wrong, right], [right, right, wrong, right, right])
    assert (test.segments, test.mean, test.deviation, test.z) == (4, 0.5, 1.0, 1.0)
    assert test.p == pytest.approx(2 * (1 - 0.8413447460685429))
    same = matched_pairs([wrong], [wrong])
    assert (same.z, same.p) == (0.0, 1.0)
    assert matched_pairs([right], [right]).segments == 0


def test_matched_pairs_with_equal_differences_are_a_sign_test():
    """A system with one error more in each of 100 segments did not differ significantly from the other."""
    words = list("abcd")
    right, wrong = align_sclite(words, words), align_sclite(words, list("xbcd"))
    assert matched_pairs([wrong] * 5, [right] * 5).p == 2 * 0.5**5
    assert matched_pairs([wrong], [right]).p == 1.0


def test_bootstrap_of_the_difference_equals_a_plain_loop():
    rng = random.Random(1)
    words = list("abcdefgh")
    systems = [
        [align_sclite(words, [w if rng.random() > rate else "x" for w in words]) for _ in range(20)]
        for rate in (0.3, 0.2)
    ]
    found = bootstrap_difference(*systems, samples=300, seed=5)
    errors = [[sum(e.operation != "=" for e in edits) for edits in system] for system in systems]
    generator = np.random.default_rng(5)
    drawn = generator.integers(20, size=(300, 20))
    differences = [sum(errors[0][i] - errors[1][i] for i in row) / (8 * 20) for row in drawn]
    assert found.interval == pytest.approx(tuple(np.quantile(differences, [0.025, 0.975])))
    assert found.difference == pytest.approx((sum(errors[0]) - sum(errors[1])) / 160)
    below, above = (sum(sign * x >= 0 for x in differences) for sign in (-1, 1))
    assert found.p == pytest.approx(min(1.0, 2 * (min(below, above) + 1) / 301))


def test_no_p_value_of_the_bootstrap_is_zero():
    """A system that is better in every resampled corpus had p = 0."""
    words = list("abcd")
    right, wrong = align_sclite(words, words), align_sclite(words, list("xbcd"))
    assert bootstrap_difference([wrong] * 5, [right] * 5, samples=99).p == 0.02


@pytest.mark.slow
def test_the_false_alarm_rate_is_near_the_level():
    """Of 150 pairs of equal systems, 5 % or 7.5 give a false alarm; more than 16 do once in 500 runs."""
    rng = random.Random(2)
    words = [f"w{i}" for i in range(15)]

    def system():
        return [align_sclite(words, [w if rng.random() > 0.15 else "x" for w in words]) for _ in range(12)]

    alarms = sum(matched_pairs(system(), system()).p < 0.05 for _ in range(150))
    assert 1 <= alarms <= 16


def utterance(ident: str, reference: str, heard: str) -> UtteranceScore:
    edits = align_sclite(reference.split(), heard.split())
    return UtteranceScore(ident, "s", {"wer": edits}, {"wer": ErrorCounts.of(edits)})


def test_length_groups_contain_every_utterance_once():
    utterances = [utterance(str(n), " ".join("a" * n), "a") for n in (1, 1, 1, 2, 3, 3, 5, 8, 9, 20)]
    groups = by_length(utterances, "wer", groups=3)
    assert sum(group.utterances for group in groups) == 10
    assert sum((group.counts for group in groups), ErrorCounts()).length == 53
    assert all(one.longest < other.shortest for one, other in itertools.pairwise(groups))
    assert groups[0].shortest == 1
    assert groups[-1].longest == 20


def test_confusions_are_counted():
    texts = [("a b", "a x"), ("b", "x"), ("", "y")]
    alignments = [align_sclite(reference.split(), heard.split()) for reference, heard in texts]
    utterances = [UtteranceScore("u", "s", {"wer": x}, {"wer": ErrorCounts.of(x)}) for x in alignments]
    pairs = confusions(utterances, "wer")
    assert [(pair.reference, pair.hypothesis, pair.times) for pair in pairs] == [("b", "x", 2), ("∅", "y", 1)]


def write(folder, heard: dict[str, str], reference: str = "go on then please", unit: Unit = "piece"):
    write_hypotheses(
        folder / "hyp.jsonl",
        [Hypothesis(name, "s1", 2.0, reference, None, [], [], text, unit) for name, text in heard.items()],
    )
    return folder


def test_two_systems_are_tested_against_each_other(tmp_path):
    bad = write(tmp_path / "test" / "bad", {f"u{i}": "go in then bees" for i in range(30)} | {"z": "go on"})
    good = write(
        tmp_path / "test" / "good", {f"u{i}": "go on then please" for i in range(30)} | {"z": "go on"}
    )
    text = printed([bad, good], details=False, save=str(tmp_path / "tests.json"))
    assert "test/good against test/bad" in text
    assert "significantly better" in text
    assert "significantly worse" in printed([good, bad], details=False)
    (pair,) = json.loads((tmp_path / "tests.json").read_text())
    assert pair["wer"]["matched_pairs"]["p"] < 0.001
    assert pair["wer"]["bootstrap"]["difference"] == pytest.approx(60 / 124)


def test_models_of_characters_are_tested_by_cer_too(tmp_path):
    """Of equally many wrong words, one system has more letters right; only WER was tested."""
    bad, good = (
        write(tmp_path / heard, {f"u{i}": f"go {heard} then please" for i in range(30)}, unit="character")
        for heard in ("xyz", "o")
    )
    characters, words, matched = printed([bad, good], width=120, details=False).splitlines()[-3:]
    assert "WER +0.00 points" in words
    assert "matched pairs: p = 1.000" in matched
    assert matched.endswith("no significant difference at 5 %")
    assert "CER -11.76 points" in characters  # two of 17 characters
    assert characters.endswith("significantly better")


def test_systems_with_different_utterances_are_compared_only_on_the_common_ones(tmp_path):
    """Their error rates stood side by side in one table although they were of different utterances."""
    one = write(tmp_path / "one", {"u1": "go on", "u2": "go"})
    two = write(tmp_path / "two", {"u1": "on", "u3": "go"})
    with pytest.raises(UserError, match=r"1 \(u2\) only in .*1 \(u3\) only in .*common=true"):
        scored([one, two])
    assert not (one / "score.json").exists()
    text = " ".join(printed([one, two], details=False, common=True).split())
    assert text.count("1 of 2 utterances left out") == 2
    assert "│ 50.00 │" in text  # of u1 alone; 62.50 of both
    assert "no significance test, because one utterance has no spread" in text
    assert json.loads((two / "score.json").read_text())["wer"]["length"] == 8  # of all utterances
    three = write(tmp_path / "three", {"u2": "go"})
    with pytest.raises(UserError, match="no utterance in common"):
        scored([one, two, three], common=True)
    other_split = write(tmp_path / "dev", {"v1": "go"})
    assert "against" not in printed([one, other_split], details=False)


def test_long_names_do_not_break_the_table_at_80_columns(tmp_path):
    name = "i-clustered-100:topk=32,bits=63,iterations=10-beam-with-a-very-long-name-of-its-own"
    folders = [write(tmp_path / f"{name}-{i}", {"u1": "go on"}) for i in range(2)]
    text = printed(folders, details=False)
    rows = [line for line in text.splitlines() if line.startswith("│")]
    assert len(rows) == 2
    assert all(math.isclose(float(row.split("│")[2].split()[0]), 50.0) for row in rows)
    assert f"{name}-1" in text


def test_trn_files_are_scored(tmp_path):
    (tmp_path / "ref.trn").write_text(";; comment\ngo on then (s1-u1)\nyes (s2-u2)\n")
    (tmp_path / "hyp.trn").write_text("yes (s2-u2)\ngo then (s1-u1)\n")
    (result,) = scored([tmp_path / "hyp.trn", tmp_path / "ref.trn"])
    assert result.rates["wer"].counts == ErrorCounts(0, 1, 0, 4)
    assert [speaker.speaker for speaker in result.speakers] == ["s1", "s2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("go on\n", r"hyp.trn:1: expected `words \(speaker-utterance\)`"),
        ("go (s1-u1)\ngo (s1-u1)\n", r"hyp.trn:2: expected each utterance once, found 's1-u1' again"),
        ("go (s1-u9)\n", r"1 \(s1-u9\) only in .*hyp.trn; 1 \(s1-u1\) only in .*ref.trn"),
    ],
)
def test_errors_name_malformed_and_mismatched_trn_files(tmp_path, text, message):
    (tmp_path / "ref.trn").write_text("go on then (s1-u1)\n")
    (tmp_path / "hyp.trn").write_text(text)
    with pytest.raises(UserError, match=message):
        scored([tmp_path / "hyp.trn", tmp_path / "ref.trn"])
    with pytest.raises(UserError, match=r"expected `hyp.trn ref.trn` or `ref.txt hyp.txt`"):
        scored([tmp_path / "hyp.trn"])


def test_text_files_are_read_line_by_line_or_with_ids(tmp_path):
    """The first words of a nearly perfect hypothesis are all equal too, but no ids."""
    reference, heard = tmp_path / "ref.txt", tmp_path / "hyp.txt"
    reference.write_text("go on then\nYes it is\n\n")
    heard.write_text("go in then\nyes\n\n")
    text = printed([reference, heard])
    assert "read line by line" in text
    (result,) = scored([reference, heard])
    assert result.rates["wer"].counts == ErrorCounts(1, 2, 0, 6)
    assert result.alignment == "unit"
    assert {utterance.id for utterance in result.utterances} == {"1", "2", "3"}
    reference.write_text("spk-u1 go on\nspk-u2\tYes it is\n")
    heard.write_text("spk-u1 go\nspk-u2\n")
    assert "read as `id text`" in printed([reference, heard])
    (result,) = scored([reference, heard])
    assert result.rates["wer"].counts == ErrorCounts(0, 4, 0, 5)
    assert {utterance.id for utterance in result.utterances} == {"spk-u1", "spk-u2"}
    heard.write_text("spk-u2\nspk-u1 go\n")
    assert "read as `id text`" in printed([reference, heard])
    assert scored([reference, heard])[0].rates["wer"].counts == ErrorCounts(0, 4, 0, 5)
    heard.write_text("go\n")
    with pytest.raises(UserError, match=r"hyp.txt: expected a line for each of the 2 in .*ref.txt, found 1"):
        scored([reference, heard])


@pytest.mark.parametrize("names", [["u1.wav", "u2.wav"], ["clips/u1.MP3", "clips/u2.MP3"], ["U1", "U2"]])
@pytest.mark.parametrize("trn", [False, True])
def test_ids_may_be_names_of_files(tmp_path, names, trn):
    """`u1.wav go on` against `u1 go on` was read line by line: the ids were words, and every one an error."""
    files = []
    for file, idents in (("ref", ["u1", "u2"]), ("hyp", names)):
        lines = [f"go {x} ({y})" if trn else f"{y} go {x}" for x, y in zip(["on", "in"], idents, strict=True)]
        files.append(tmp_path / f"{file}.{'trn' if trn else 'txt'}")
        files[-1].write_text("\n".join(lines) + "\n")
    (result,) = scored(files[::-1] if trn else files)
    assert result.rates["wer"].counts == ErrorCounts(0, 0, 0, 4)


def test_names_that_differ_in_their_suffix_alone_stay_apart():
    assert ident_key(["a/x.1", "b/x.1"])("a/X.1") == "a/x.1"
    assert ident_key(["x.wav", "x.mp3"])("x.wav") == "x.wav"
    assert ident_key(["x", "X"])("X") == "X"


def test_ids_of_text_files_are_not_words(tmp_path):
    """A missing line turned the ids of all others into words, and the WER from 29 into 55 %."""
    reference, heard = tmp_path / "ref.txt", tmp_path / "hyp.txt"
    reference.write_text("u-1 go on\nu-2 yes\nu-3 it is\n")
    for text, message in {
        "u-1 go\nu-3 it is\n": r"same utterances in both, found 1 \(u-2\) only in .*ref\.txt$",
        "u-1 go\nu-4 yes\nu-3 it\n": r"found 1 \(u-2\) only in .*; 1 \(u-4\) only in .*hyp\.txt$",
        "u-1 go\nu-1 go\nu-2 it\n": r"hyp\.txt: expected each utterance once, found 'u-1' again$",
    }.items():
        heard.write_text(text)
        with pytest.raises(UserError, match=message):
            scored([reference, heard])


def test_the_trn_form_is_recognised_by_its_lines(tmp_path):
    """Under other names, `(id)` counted as a word."""
    reference, heard = tmp_path / "a.ref", tmp_path / "a.hyp"
    reference.write_text(";; c\ngo on then (s1-u1)\nyeah it is (s1-u2)\n")
    heard.write_text("yeah it is (s1-u2)\ngo on (s1-u1)\n")
    assert "read as trn" in printed([reference, heard])
    (result,) = scored([reference, heard])
    assert result.rates["wer"].counts == ErrorCounts(0, 1, 0, 6)
    assert result.alignment == "sclite"
    # As `hyp.trn ref.trn`; `a.ref` was taken for the hypotheses.
    assert scored([heard, reference])[0].rates["wer"].counts == ErrorCounts(0, 1, 0, 6)
    assert f"reference {reference}, hypotheses {heard}:" in printed([heard, reference])


@pytest.mark.parametrize("names", [["x.hyp", "x.ref"], ["x.ref", "x.hyp"], ["x.ref", "x.txt"]])
def test_the_table_has_the_name_of_the_hypotheses(names, tmp_path, monkeypatch):
    """`asr score x.hyp x.ref` showed the rates as those of the reference."""
    monkeypatch.chdir(tmp_path)
    for name in names:
        (tmp_path / name).write_text("go on\n")
    _, title, *_ = printed(names).splitlines()
    (heard,) = {*names} - {"x.ref"}
    assert title.strip() == heard


@pytest.mark.parametrize("text", ["none", "lower"])
def test_case_is_treated_as_by_jiwer(text, tmp_path):
    spoken, said = ["Don't, please!", "WELL - known «Straße»"], ["dont please", "well known straße ?"]
    (tmp_path / "ref").write_text("\n".join(spoken))
    (tmp_path / "hyp").write_text("\n".join(said))
    transforms = [jiwer.ToLowerCase()] * (text == "lower")
    words = jiwer.Compose([*transforms, jiwer.ReduceToListOfListOfWords()])
    expected = jiwer.process_words(spoken, said, words, words)
    (result,) = scored([tmp_path / "ref", tmp_path / "hyp"], text=text)
    counts = result.rates["wer"].counts
    assert result.rates["wer"].rate == expected.wer
    assert (counts.substitutions, counts.deletions, counts.insertions) == (
        expected.substitutions,
        expected.deletions,
        expected.insertions,
    )


@pytest.mark.parametrize(
    ("text", "language", "errors"),
    [("lower", "", 4), ("words", "", 2), ("spoken", "", 0), ("spoken", "de", 2)],
)
def test_texts_are_compared_by_the_rules_of_preparation(text, language, errors, tmp_path):
    """`punctuation=remove` wrote don't as dont, and a reference's `3 dollars` never was three dollars."""
    (tmp_path / "ref").write_text("Don’t [laughter], please: $3!\n")
    (tmp_path / "hyp").write_text("don't please three dollars\n")
    (result,) = scored([tmp_path / "ref", tmp_path / "hyp"], text=text, language=language)
    assert result.rates["wer"].counts.errors == errors


def test_numbers_of_an_unknown_language_are_refused(tmp_path):
    (tmp_path / "ref").write_text("3\n")
    with pytest.raises(UserError, match="language=xx: text=spoken expects a language whose numbers"):
        scored([tmp_path / "ref", tmp_path / "ref"], text="spoken", language="xx")


def test_options_without_effect_on_files_are_refused(tmp_path):
    (tmp_path / "ref.trn").write_text("go (s-1)\n")
    with pytest.raises(UserError, match="word_filter=false: has no effect for TRN files, only for"):
        scored([tmp_path / "ref.trn", tmp_path / "ref.trn"], word_filter=False)


def test_exported_trn_files_give_the_same_score(tmp_path):
    folder = write(tmp_path, {"u1": "go on please", "u2": "go on then please"})
    (ours,) = scored([folder], ctm=True, trn=True)
    assert len((folder / "hyp.ctm").read_text().splitlines()) == 7
    assert [segment.file for segment in read_stm(folder / "ref.stm").segments] == ["u1", "u2"]
    assert len(read_trn(folder / "hyp.trn")) == 2
    (theirs,) = scored([folder / "hyp.trn", folder / "ref.trn"])
    assert theirs.rates["wer"].counts == ours.rates["wer"].counts == ErrorCounts(0, 1, 0, 8)
