"""STM and CTM files and mapping rules: reading, writing, and errors that name file and line."""

import pytest
from score_output import scored

from asr.errors import UserError
from asr.scoring.ctm import CtmAlternatives, CtmWord, read_ctm, write_ctm
from asr.scoring.glm import Glm, Rule, parse_rule, read_glm
from asr.scoring.stm import Stm, StmSegment, plain_words, read_stm, write_stm


def test_stm_round_trip(tmp_path):
    path = tmp_path / "ref.stm"
    content = (
        ';; LABEL "O" "Overall" ""\n'
        "sw_4390 A sw_4390_A 0.50 2.25 <O,sw,F,sw-F> { HE'S / HE IS } (%HESITATION) GO-\n"
        "sw_4390 A sw_4390_A 2.25 3.00 NO LABEL\n"
        "sw_4390 B sw_4390_B 3.00 4.00 <O> IGNORE_TIME_SEGMENT_IN_SCORING\n"
        "sw_4390 B sw_4390_B 4.00 5.00 <O>\n"
    )
    path.write_text(content)
    stm = read_stm(path)
    assert [segment.label for segment in stm.segments] == ["<O,sw,F,sw-F>", "", "<O>", "<O>"]
    assert [segment.ignored for segment in stm.segments] == [False, False, True, False]
    write_stm(path, stm)
    assert path.read_text() == content
    assert not list(tmp_path.glob("*.partial"))


def test_stm_fields_may_be_separated_by_tabs(tmp_path):
    path = tmp_path / "ref.stm"
    path.write_text("rec\tA\tspk\t0.0\t1.0\t<o,f0>\thello\tworld\n")
    assert read_stm(path).segments == [StmSegment("rec", "A", "spk", 0.0, 1.0, "<o,f0>", "hello world")]


def test_ctm_round_trip(tmp_path):
    path = tmp_path / "hyp.ctm"
    content = (
        "sw_1 A 0.500 0.250 hello 0.9000\n"
        "sw_1 A * * <ALT_BEGIN>\n"
        "sw_1 A 1.000 0.100 he\n"
        "sw_1 A 1.100 0.100 is\n"
        "sw_1 A * * <ALT>\n"
        "sw_1 A 1.000 0.200 he's\n"
        "sw_1 A * * <ALT_END>\n"
        "sw_1 B 0.100 0.200 yes\n"
    )
    path.write_text(content)
    entries = read_ctm(path)
    assert entries[0] == CtmWord("sw_1", "A", 0.5, 0.25, "hello", 0.9)
    assert isinstance(entries[1], CtmAlternatives)
    write_ctm(path, reversed(entries))  # sorted by recording, channel and time
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("read", "line", "message"),
    [
        (read_stm, b"f A s 0.0 x WORDS", r":2: expected `file channel speaker start end"),
        (read_stm, b"f A s 1.0", ":2: expected `file"),
        (read_stm, b"f A s 2.0 1.0 WORDS", ":2: expected a segment from start to end, found 2 to 1 s"),
        (read_stm, b"f A s 2.0 3.0 caf\xe9", ":2: expected utf-8 text"),
        (read_ctm, b"f A 0.0 word", ":2: expected `file channel start duration word`"),
        (read_ctm, b"f A * * <ALT_BEGIN>\nf A 0 1 x", ":2: expected words and <ALT_END>"),
        (read_ctm, b"f A * * <ALT_BEGIN>\nf A * * <ALT_END>", ":2: expected words and <ALT_END>"),
        (lambda path: read_glm(path, "reference"), b"A -> B", ":2: expected a rule `A => B / C __ D`"),
        (lambda path: read_glm(path, "reference"), b"* format = 'NIST2'", ":2: expected rules in the format"),
        (lambda path: read_glm(path, "reference"), b"* name", ":2: expected a quoted value"),
    ],
)
def test_errors_name_the_malformed_line(read, line, message, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b";; a comment\n" + line + b"\n")
    with pytest.raises(UserError, match=message):
        read(path)


def test_an_empty_reference_raises(tmp_path):
    (tmp_path / "ref.stm").write_text(";; nothing\n")
    with pytest.raises(UserError, match="expected segments, found none"):
        read_stm(tmp_path / "ref.stm")
    with pytest.raises(UserError, match="found none"):
        read_ctm(tmp_path / "no.ctm")


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("OKAY => O. K.", Rule("OKAY", "O. K.")),
        ("[  ] => [ ]", Rule("  ", " ")),
        ('"UH" => ""', Rule("UH", "")),
        ("UH =>  %HESITATION     / [ ] __ [ ]", Rule("UH", "%HESITATION", " ", " ")),
        ("FALKNER => FAULKNER / [WILLIAM ] __", Rule("FALKNER", "FAULKNER", "WILLIAM ", "")),
        ("T. => TEE / __ [ SHIRT]", Rule("T.", "TEE", "", " SHIRT")),
        ("HE'S => [{HE IS / HE HAS}] / [ ] __ [ ]", Rule("HE'S", "{HE IS / HE HAS}", " ", " ")),
        ("GONNA => GOING TO", Rule("GONNA", "GOING TO")),
        ("SO => [] / [ ] __ [ A ]", Rule("SO", "", " ", " A ")),
    ],
)
def test_rules_are_parsed_as_by_rfilter1(line, rule):
    assert parse_rule(line, "here") == rule


def test_the_first_matching_rule_is_applied_from_left_to_right():
    glm = Glm([Rule("A B", "1"), Rule("A", "2", " ", " "), Rule("B", "3", "A "), Rule("AB", "4")])
    assert glm.apply(" A B A AB B A ") == " 1 2 4 B 2 "
    assert glm.apply(" a b ") == " 1 "  # case-insensitive
    assert Glm([Rule("A", "1")], case_sensitive=True).apply("a A") == "a 1"
    assert Glm([Rule("A", "1")], copy_unmatched=False).apply("a-b A") == "11"


def test_contexts_are_matched_against_the_input():
    """The output of one rule is not a context for the next."""
    glm = Glm([Rule("A", "X"), Rule("B", "Y", "X "), Rule("B", "Z", "A ")])
    assert glm.apply("A B") == "X Z"


def test_sections_apply_to_references_or_hypotheses(tmp_path):
    path = tmp_path / "rules.glm"
    path.write_text(
        ";; first line\n* case_sensitive = 'F'\nA => 1\n"
        ';;  INPUT_DEPENDENT_APPLICATION = "stm|trn"\nB => 2\n'
        ';;  INPUT_DEPENDENT_APPLICATION = "HYP"\nC => 3\n'
        ';;  INPUT_DEPENDENT_APPLICATION = ".*"\nD => 4 ;; to the end\n'
    )
    assert read_glm(path, "reference").apply("abcd") == "12c4"
    assert read_glm(path, "hypothesis").apply("abcd") == "1b34"


@pytest.mark.parametrize(
    ("text", "filtered"),
    [
        ("(uh huh) well-known ba- -ck", "(UH) (HUH) WELL KNOWN BA- -CK"),
        ("( ba- )  x", "(BA-) X"),
        ("a-b-c", "A B C"),
        ("", ""),
    ],
)
def test_the_filter_equals_csrfilt(text, filtered):
    assert Glm([]).filter(text) == filtered


def test_plain_words_of_a_reference():
    text = "(%HESITATION) { HE'S / HE IS } THE BA- BACK { @ / UH } (OH YES)"
    assert plain_words(text) == ["%HESITATION", "HE'S", "THE", "BA-", "BACK", "OH", "YES"]


def test_a_reference_is_restricted_by_recording_name():
    segments = [StmSegment(f, "A", "s", 0, 1, "", "A") for f in ("sw_1", "en_1", "sw_2")]
    assert [x.file for x in Stm(segments, []).restricted(("sw_",)).segments] == ["sw_1", "sw_2"]


@pytest.mark.parametrize("times", ["-1 0.5", "nan 0.5", "inf 1", "0 -1", "0 nan"])
def test_words_without_a_place_in_time_are_refused(times, tmp_path):
    """They were scored as if they had not been recognised."""
    path = tmp_path / "x.ctm"
    path.write_text(f"f A {times} go\n")
    with pytest.raises(UserError, match=r"x.ctm:1: expected `file channel start duration word`"):
        read_ctm(path)


def wer_of(folder, **files):
    """Write files, by name with `_` for the dot, and return the score of the first against the second."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    (result,) = scored([folder / name.replace("_", ".") for name in files], samples=1)
    return result


def test_ids_recordings_and_channels_are_compared_without_case(tmp_path):
    """14 of 18 pairs of NIST's own examples were refused. The expected counts are sclite's."""
    trn = wer_of(tmp_path, hyp_trn="go (ANN-1)\non it (bob-1)\n", ref_trn="GO (ann-1)\nOn (Bob-1)\n")
    assert [(x.speaker, x.counts["wer"].errors) for x in trn.speakers] == [("ann", 0), ("bob", 1)]
    stm = "Rec A Ann 0 1 go\nrec a ann 1 2 on\n"
    ctm = wer_of(tmp_path, hyp_ctm="REC a 0.1 0.1 go\nrec A 1.1 0.1 off\n", ref_stm=stm)
    assert [(x.speaker, x.counts["wer"].errors) for x in ctm.speakers] == [("ann", 1)]
    with pytest.raises(UserError, match=r"ref.trn:2: expected each utterance once, found 'ANN-1' again"):
        wer_of(tmp_path, hyp_trn="go (ann-1)\n", ref_trn="go (ann-1)\ngo (ANN-1)\n")
    with pytest.raises(UserError, match=r"1 \(Bob-2\) only in .*hyp.trn"):
        wer_of(tmp_path, hyp_trn="go (ANN-1)\ngo (Bob-2)\n", ref_trn="go (ann-1)\n")


@pytest.mark.parametrize(
    ("ident", "speaker"), [("a_b-c", "a_b"), ("p-q-r", "p"), ("x_y_z", "x"), ("one", "one")]
)
def test_speakers_are_those_of_spu_id(ident, speaker, tmp_path):
    """The documents named `-i wsj`, which takes three letters."""
    files = {"hyp_trn": f"go ({ident})\n", "ref_trn": f"go ({ident})\n"}
    assert [x.speaker for x in wer_of(tmp_path, **files).speakers] == [speaker]


@pytest.mark.parametrize(
    ("written", "heard", "errors"),
    [(r"a\;b", "a;b", 1), (r"a\;b", r"a\;b", 0), ("a;b", "a", 0), (r"\;a;x", r"\;a", 0), (r"a\b", "ab", 0)],
)
def test_a_semicolon_after_a_backslash_is_a_semicolon(written, heard, errors, tmp_path):
    """The word was cut before it. The counts are sclite's."""
    trn = wer_of(tmp_path, hyp_trn=f"{heard} (u-1)\n", ref_trn=f"{written} (u-1)\n")
    ctm = wer_of(tmp_path, hyp_ctm=f"u A 0 1 {heard}\n", ref_stm=f"u A s 0 1 {written}\n")
    assert [x.rates["wer"].counts.errors for x in (trn, ctm)] == [errors] * 2


def test_without_mapping_rules_words_are_as_written(tmp_path):
    """Hyphens and optional groups were divided, unlike in trn files and by sclite."""
    result = wer_of(
        tmp_path, hyp_ctm="u A 0 1 x-y\nu A 1 1 ba-\n", ref_stm="u A s 0 2 X-Y bad (so it) { a / @ }\n"
    )
    counts = result.rates["wer"].counts
    assert (counts.length, counts.substitutions, counts.deletions, counts.insertions) == (4, 1, 2, 0)
    (tmp_path / "rules.glm").write_text(";; none\n")
    (mapped,) = scored(
        [tmp_path / "hyp.ctm", tmp_path / "ref.stm"], glm=str(tmp_path / "rules.glm"), samples=1
    )
    assert mapped.rates["wer"].counts.length == 5  # x, y, bad, and two optional words
