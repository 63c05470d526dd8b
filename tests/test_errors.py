"""Messages of errors: one line of limited length, and the words nearest to a wrong one."""

import re

import pytest
from torch._utils import ExceptionWrapper

from asr.errors import UserError, did_you_mean, run_program


def test_a_message_is_one_line_without_control_characters() -> None:
    """A value with a line break left only the part after it of the message."""
    error = UserError("a\nb.wav: expected\x1b[2J audio, found\u2028none\n")
    assert error.line == str(error) == r"a\nb.wav: expected\x1b[2J audio, found\u2028none"


def test_the_middle_of_a_long_message_is_left_out() -> None:
    line = UserError(f"x.json: expected int, found {'long' * 1000} in entry 3").line
    assert len(line) < 1100
    assert line.startswith("x.json: expected int, found long")
    assert line.endswith("long in entry 3")


def test_a_data_workers_error_is_its_message() -> None:
    try:
        raise UserError("u1: expected audio, found a\nb")
    except UserError:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(UserError) as caught:
        wrapped.reraise()
    assert caught.value.line == r"u1: expected audio, found a\nb"


def test_the_nearest_of_many_words_are_listed() -> None:
    """Errors for a wrong option listed forty names."""
    known = [f"model.option_{i}" for i in range(40)]
    found = did_you_mean("xyz", [*known, "trainer.xy"])
    assert found.startswith(" (nearest: trainer.xy, model.option_")
    assert found.count(",") == 2
    assert did_you_mean("model.option3", known).startswith(" (did you mean 'model.option_3")
    assert did_you_mean("xyz", ["b", "a"]) == " (known: a, b)"
    assert did_you_mean("x" * 10**6, known).startswith(" (nearest: ")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            UnicodeEncodeError("ascii", "gro\xdf", 3, 4, "x"),
            r"takes '.*xdf', found the encoding ascii: set ",
        ),
        (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "x"), r"a\\udcff': expected a name in UTF-8"),
        (RuntimeError("can't start new thread"), r"a limit .* is reached \(can't start new thread\)"),
        (ImportError("x.so: failed to map segment from shared object"), r"limit .*\(failed to map segment"),
    ],
)
def test_limits_of_the_system_and_its_output_are_one_line(
    error: Exception, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """PYTHONIOENCODING=ascii, ulimit -u and ulimit -v ended with tracebacks."""

    def work() -> None:
        raise error

    assert run_program("asr", work) == 1
    assert re.fullmatch(f"asr: .*{expected}.*\n", capsys.readouterr().err)


def test_a_closed_standard_output_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`asr help >&-` ended with an AttributeError of None."""
    monkeypatch.setattr("sys.stdout", None)
    assert run_program("asr", lambda: None) == 1
    assert capsys.readouterr().err == "asr: standard output is closed: > /dev/null discards it\n"
