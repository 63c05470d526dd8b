"""Official scores of a decoded split: the words submitted, their times, and the files written."""

import gzip
import json
import stat

import pytest
from rich.console import Console

from asr.errors import UserError
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.official import (
    Place,
    find_hubscr,
    is_scored,
    official_score,
    print_official,
    recognised_words,
    reference_of,
)
from asr.scoring.stm import Stm, StmSegment, write_stm

RULES = """;; rules
* name "test"
* desc "test"
* format = 'NIST1'
* max_nrules = '10'
* copy_no_hit = 'T'
* case_sensitive = 'F'
C => B / [ ] __ [ ]
"""


@pytest.fixture
def hubscr():
    try:
        return find_hubscr()
    except UserError:
        pytest.skip("sclite (Debian package sctk) is not installed")


def heard(name, text, words=None, unit="piece"):
    return Hypothesis(name, "s", 2.0, "r", None, [], [], text, unit, words)


def segment(file, channel, start_s, end_s, text="A B"):
    return StmSegment(file, channel, "s", start_s, end_s, "", text)


@pytest.fixture
def manifest(tmp_path):
    """Write a manifest of two conversations; the first utterance has a margin of 0.1 s."""
    path = tmp_path / "data" / "eval.cuts.jsonl.gz"
    path.parent.mkdir()
    entries = [("u1", "sw_1", 0, 0.9, 2.2), ("u2", "sw_1", 1, 5.0, 2.0), ("u3", "en_1", 0, 1.0, 2.0)]
    with gzip.open(path, "wt") as file:
        for name, recording, channel, start, duration in entries:
            cut = {"id": name, "start": start, "duration": duration, "channel": channel}
            file.write(json.dumps({**cut, "recording": {"id": recording}}) + "\n")
    segments = [
        segment("sw_1", "A", 1.0, 3.0),
        segment("sw_1", "B", 5.0, 7.0),
        segment("en_1", "A", 1.0, 3.0),
    ]
    write_stm(path.with_name("eval.stm"), Stm(segments, []))
    path.with_name("hub5.glm").write_text(RULES)
    return path


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *[("hello", True), ("-cause", True), ("uh-huh", True), ("eew", True), ("o'clock", True)],
        *[
            ("uh", False),
            ("%hesitation", False),
            ("UM", False),
            ("huh", False),
            ("be-", False),
            ("[noise]", False),
            ("<NOISE>", False),
        ],
    ],
)
def test_noises_fillers_and_fragments_are_not_scored(word, expected):
    assert is_scored(word) == expected


def test_words_without_times_are_spread_over_the_utterance():
    places = {"u": Place("f", "B", 10.0, 12.0), "v": Place("f", "B", 20.0, 22.0)}
    stm = Stm([segment("f", "B", 10.0, 12.0), segment("f", "B", 20.0, 22.0)], [])
    timed = [{"word": "b", "start_s": 0.25, "end_s": 0.5, "confidence": 1.0}]
    words = recognised_words([heard("u", "a uh b"), heard("v", "b", timed)], places, stm)
    assert [(word.word, word.start_s, word.duration_s) for word in words] == [
        ("a", 10.0, 0.667),
        ("b", 11.333, 0.667),
        ("b", 20.25, 0.25),
    ]


def test_a_word_in_the_margin_stays_with_its_utterance():
    """A segment is decoded with 0.1 s more at each end; words in this margin counted for the neighbour."""
    places = {"first": Place("f", "A", 0.9, 2.1), "second": Place("f", "A", 2.1, 3.1)}
    stm = Stm([segment("f", "A", 1.0, 2.0, "A"), segment("f", "A", 2.2, 3.0, "B")], [])
    late = [{"word": "a", "start_s": 1.12, "end_s": 1.2, "confidence": 1.0}]
    early = [{"word": "b", "start_s": 0.0, "end_s": 0.05, "confidence": 1.0}]
    words = recognised_words([heard("first", "a", late), heard("second", "b", early)], places, stm)
    assert words[0].start_s >= 1.0
    middles_s = [word.start_s + word.duration_s / 2 for word in words]
    assert middles_s[0] < 2.0
    assert 2.2 <= words[1].start_s <= middles_s[1] < 3.0


def test_scores_of_the_whole_set_and_its_subsets(hubscr, manifest, tmp_path):
    hypotheses = [heard("u1", "a c"), heard("u2", "a uh"), heard("u3", "x b b")]
    scores = official_score(hypotheses, manifest, tmp_path)
    found = {name: (score.segments, score.rate.counts.errors) for name, score in scores.items()}
    assert found == {"all": (3, 3), "swbd": (2, 1), "callhm": (1, 2)}
    entry = scores["swbd"].as_dict()
    assert (entry["rate"], entry["deletions"], entry["length"]) == (0.25, 1, 4)
    assert len((tmp_path / "official" / "hyp.ctm").read_text().splitlines()) == 6
    console = Console(record=True, width=120)
    print_official(console, tmp_path, scores)
    assert "25.00" in console.export_text()


def test_acronyms_are_split_into_letters_as_in_the_reference(hubscr, manifest, tmp_path):
    """MS98 writes `ibm`, the STM `I B M`: a correct word counted as a substitution and two deletions."""
    lexicon = [
        "a ax",
        "a ey",
        "b b iy",
        "i ay",
        "m eh m",
        "ibm ay b iy eh m",
        "aa ax ax",
        "bi b ay",
        "abi ey b iy ay",
    ]
    manifest.with_name("lexicon.txt").write_text("\n".join(lexicon))
    texts = [
        ("sw_1", "A", 1.0, 3.0, "I B M"),
        ("sw_1", "B", 5.0, 7.0, "AA BI"),
        ("en_1", "A", 1.0, 3.0, "A B I"),
    ]
    write_stm(manifest.with_name("eval.stm"), Stm([segment(*text) for text in texts], []))
    hypotheses = [heard("u1", "IBM"), heard("u2", "aa bi"), heard("u3", "abi")]
    entry = official_score(hypotheses, manifest, tmp_path)["all"].as_dict()
    errors = ("substitutions", "deletions", "insertions", "length")
    assert [entry[name] for name in errors] == [0, 0, 0, 8]
    words = [line.split()[4] for line in (tmp_path / "official" / "hyp.ctm").read_text().splitlines()]
    assert words == ["a", "b", "i", "I", "B", "M", "aa", "bi"]


def test_recordings_of_one_kind_have_no_subsets(hubscr, manifest, tmp_path):
    write_stm(manifest.with_name("eval.stm"), Stm([segment("sw_1", "A", 1.0, 3.0)], []))
    assert official_score([heard("u1", "a b")], manifest, tmp_path).keys() == {"all"}


def test_errors_name_what_is_missing(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr("asr.scoring.official.find_hubscr", lambda: tmp_path / "hubscr.pl")
    with pytest.raises(UserError, match="official scores need words, found only phones"):
        official_score([heard("u1", None, unit="phone")], manifest, tmp_path)
    with pytest.raises(UserError, match="'u9': expected it in the manifest"):
        official_score([heard("u9", "a")], manifest, tmp_path)
    manifest.with_name("eval.stm").unlink()
    assert reference_of(manifest) is None
    with pytest.raises(UserError, match="official scores need a reference in STM format"):
        official_score([heard("u1", "a")], manifest, tmp_path)


def test_a_failure_of_hubscr_is_reported_on_one_line(manifest, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "hubscr.pl"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'Error: no such rule' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert find_hubscr() == program
    with pytest.raises(UserError, match=r"hubscr\.pl on .*hyp\.ctm: expected a score, found: Error: no such"):
        official_score([heard("u1", "a")], manifest, tmp_path)


def test_without_sclite_the_message_says_how_to_install_it(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(UserError, match=r"expected NIST's hubscr\.pl in PATH .*apt-get install sctk"):
        official_score([heard("u1", "a")], manifest, tmp_path)
    assert not (tmp_path / "official").exists()
