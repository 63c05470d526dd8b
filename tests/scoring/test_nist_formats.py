"""STM, CTM and trn files: reading, writing, and errors that name file and line."""

import pytest
from score_output import scored

from asr.errors import UserError
from asr.scoring.ctm import CtmWord, write_ctm
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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"f A s 0.0 x WORDS", r":2: expected `file channel speaker start end"),
        (b"f A s 1.0", ":2: expected `file"),
        (b"f A s 2.0 1.0 WORDS", ":2: expected a segment from start to end, found 2 to 1 s"),
        (b"f A s 2.0 3.0 caf\xe9", ":2: expected utf-8 text"),
    ],
)
def test_errors_name_the_malformed_line(line, message, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b";; a comment\n" + line + b"\n")
    with pytest.raises(UserError, match=message):
        read_stm(path)


def test_an_empty_reference_raises(tmp_path):
    (tmp_path / "ref.stm").write_text(";; nothing\n")
    with pytest.raises(UserError, match="expected segments, found none"):
        read_stm(tmp_path / "ref.stm")


def test_plain_words_of_a_reference():
    text = "(%HESITATION) { HE'S / HE IS } THE BA- BACK { @ / UH } (OH YES)"
    assert plain_words(text) == ["%HESITATION", "HE'S", "THE", "BA-", "BACK", "OH", "YES"]


def test_a_reference_is_restricted_by_recording_name():
    segments = [StmSegment(f, "A", "s", 0, 1, "", "A") for f in ("sw_1", "en_1", "sw_2")]
    assert [x.file for x in Stm(segments, []).restricted(("sw_",)).segments] == ["sw_1", "sw_2"]


def wer_of(folder, **files):
    """Write files, by name with `_` for the dot, and return the score of the first against the second."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    (result,) = scored([folder / name.replace("_", ".") for name in files], samples=1)
    return result


def test_ids_are_compared_without_case(tmp_path):
    """14 of 18 pairs of NIST's own examples were refused. The expected counts are sclite's."""
    trn = wer_of(tmp_path, hyp_trn="go (ANN-1)\non it (bob-1)\n", ref_trn="GO (ann-1)\nOn (Bob-1)\n")
    assert [(x.speaker, x.counts["wer"].errors) for x in trn.speakers] == [("ann", 0), ("bob", 1)]
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


def test_what_sclite_alone_scores_is_refused(tmp_path):
    """Alternatives would be counted as words, and CTM and STM files have no utterances."""
    with pytest.raises(UserError, match=r"ref.trn: utterance 'u-1': expected no markup.*sctk"):
        wer_of(tmp_path, hyp_trn="go (u-1)\n", ref_trn="{ go / went } (u-1)\n")
    with pytest.raises(UserError, match=r"hyp.ctm: NIST's sclite scores it .*: sclite -r ref.stm stm"):
        wer_of(tmp_path, hyp_ctm="u A 0 1 go\n", ref_stm="u A s 0 1 go\n")


def test_words_are_written_in_order_of_time(tmp_path):
    words = [
        CtmWord("b", "A", 0.5, 0.25, "on", 0.9),
        CtmWord("a", "B", 1, 0.1, "x"),
        CtmWord("a", "B", 0, 1, "go"),
    ]
    write_ctm(tmp_path / "hyp.ctm", words)
    lines = (tmp_path / "hyp.ctm").read_text()
    assert lines == "a B 0.000 1.000 go\na B 1.000 0.100 x\nb A 0.500 0.250 on 0.9000\n"
