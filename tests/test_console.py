"""The width of the console, in a terminal and in files."""

import io

import pytest

from asr.console import FILE_WIDTH, open_console


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_files_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would wrap tables at 80 columns."""
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert open_console().width == FILE_WIDTH


@pytest.mark.parametrize(("columns", "width"), [("90", FILE_WIDTH), ("200", 200)])
def test_columns_can_only_widen_files(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    """COLUMNS is the width of the terminal that the command was started from."""
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", columns)
    assert open_console().width == width


def test_a_terminal_keeps_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", _Terminal())
    assert open_console().width < FILE_WIDTH
