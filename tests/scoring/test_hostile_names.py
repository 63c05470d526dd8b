"""Names and texts of data can't forge lines or fields of NIST's formats."""

import pytest

from asr.errors import UserError
from asr.scoring.ctm import CtmWord, write_ctm
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.stm import Stm, StmSegment, read_stm, write_stm
from asr.scoring.trn import read_trn, write_trn

NAMES = ["my talk (1)", "a\nb A 0.0 1.0 forged", "a\tb", " "]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_field_of_one_line(name, tmp_path):
    """The recording `my talk.wav` shifted the columns of its CTM file."""
    field = "".join(c if c.isalnum() or c == "." else "_" for c in name).replace("__", "_").strip("\n") or "_"
    write_ctm(tmp_path / "a.ctm", [CtmWord(name, "1", 0.5, 0.25, "go on", 0.5)])
    assert (tmp_path / "a.ctm").read_text() == f"{field} 1 0.500 0.250 go_on 0.5000\n"
    write_stm(tmp_path / "a.stm", Stm([StmSegment(name, "1", name, 0.0, 1.0, "", "go on")], []))
    assert [(x.file, x.speaker, x.text) for x in read_stm(tmp_path / "a.stm").segments] == [
        (field, field, "go on")
    ]
    hypothesis = Hypothesis(name, name, 1.0, "go on", None, [], [], "go", "piece")
    write_trn(tmp_path, [hypothesis])
    assert read_trn(tmp_path / "ref.trn") == {f"{field}-{field}": "go on"}


def test_a_text_of_two_lines_is_refused(tmp_path):
    hypothesis = Hypothesis("u1", "ann", 1.0, "go\nforged (ann-u2)", None, [], [], "go", "piece")
    with pytest.raises(UserError, match="expected one line, found a line break"):
        write_trn(tmp_path, [hypothesis])
    with pytest.raises(UserError, match="expected one line, found a line break"):
        write_stm(tmp_path / "a.stm", Stm([StmSegment("a", "1", "s", 0.0, 1.0, "", "go\na 1 s 0 1 x")], []))
