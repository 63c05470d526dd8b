"""Lines, tables and JSON from data that some programs would take for something else."""

import csv
import gzip

import pytest

from asr.errors import UserError
from asr.files import parse_json
from asr.text.files import FORMULA, read_lines, read_text, stream_lines, write_lines, write_table

FORMULAS = ["=1+1", "+49 30", "-uh", "@sum", "=cmd|' /C calc'!A0", "'=a", "-0.5x", "- ", "+", "'@"]
PLAIN = ["go on", "", "'tis", "a=b", "-0.5", "+1e3", "-inf", "ü", '"quoted"', "a,b", 3, -0.5, True]


def test_texts_are_read_at_once_or_by_the_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo\rthree\n")
    assert read_lines(path) == [(1, "one"), (3, "two"), (4, "three")]
    assert list(stream_lines(path)) == ["one\r\n", "\r\n", "two\rthree\n"]
    for name in ("packed.gz", "packed.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b"packed\n\nlast"))
        assert list(stream_lines(tmp_path / name)) == ["packed\n", "\n", "last"]
    for name in ("packed.gz", "packed.txt"):  # by content: only `read_lines` did so
        assert read_text(tmp_path / name) == "packed\n\nlast"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.txt",
            b"fine\nfine\nbro\xe9ken\n",
            r"x\.txt:3: expected .* found the bytes e9",
        ),
        ("x.txt", b"one\ngo\0ld\n", r"x\.txt:2: expected .* text.*, found a null character"),
        ("x.txt", b"\xef\xbb\xbfbyte order mark\n\xff", r"x\.txt:2: expected .* found the bytes ff"),
        ("x.txt", None, r"x\.txt: expected a text file, found none"),
        (
            "x.gz",
            gzip.compress(b"packed" * 9, mtime=0)[:20],  # else the test's name holds the time of collection
            r"x\.gz: expected a whole gzip file, found a broken one",
        ),
        ("x.gz", b"not packed", r"x\.gz: expected a whole gzip file, found a broken one"),
    ],
)
@pytest.mark.parametrize("read", [read_text, lambda path: list(stream_lines(path))], ids=["whole", "stream"])
def test_texts_that_cannot_be_read_are_named(read, name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name)


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_no_cell_is_a_formula_and_cells_are_read_back(suffix, tmp_path):
    """A transcript such as `=HYPERLINK(…)` ran when a table was opened in a spreadsheet."""
    path = tmp_path / f"table.{suffix}"
    write_table(path, ["text", "-other"], [[cell, 1] for cell in [*FORMULAS, *PLAIN]])
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file, delimiter="\t" if suffix == "tsv" else ",")
    cells = [row[0] for row in rows]
    assert header == ["text", "'-other"]
    assert cells == [*(f"'{cell}" for cell in FORMULAS), *map(str, PLAIN)]
    texts = [cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell for cell in cells]
    assert texts == [str(cell) for cell in [*FORMULAS, *PLAIN]]


def test_control_characters_forge_no_rows(tmp_path):
    text = "a\nb\tc\rd\x1b[2J\u2028\x85e\ud800"
    write_table(tmp_path / "t.tsv", ["id", "text"], [["u1", text], ["\t=1", "\r-x"]])
    lines = (tmp_path / "t.tsv").read_text().splitlines()
    assert lines[1:] == [r"u1	a\nb\tc\rd\x1b[2J\u2028\x85e\ud800", r"\t=1	\r-x"]


@pytest.mark.parametrize("line", ["u1 go\nu2 on", "u1 go\r"])
def test_a_line_with_a_line_break_is_refused(line, tmp_path):
    """The id `u1\\nu2` wrote a line for an utterance that does not exist."""
    with pytest.raises(UserError, match=r"ref\.trn: expected one line, found a line break in 'u1 go"):
        write_lines(tmp_path / "ref.trn", ["first", line])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "reason"),
    [("[" * 100_000, "nested too deeply"), ("1" * 5000, "digits"), ("{'a'}", "Expecting property name")],
)
def test_what_is_no_json_is_named(text, reason):
    """Brackets nested 100,000 deep ended in a traceback."""
    with pytest.raises(UserError, match=f"m.json:3: expected a cut in JSON, found .*{reason}"):
        parse_json(text, "m.json:3", "a cut")


@pytest.mark.slow
def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path):
    """`asr segment` read gigabytes from a text file of a few KB."""
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(bytes((1 << 26) + 1)))
    with pytest.raises(
        UserError, match=r"x\.txt\.gz: expected text, found \d+ bytes that unpack to more than 67"
    ):
        read_text(path)
    path.write_bytes(gzip.compress(b"go on\r\n"))
    assert read_text(path) == "go on\n"
