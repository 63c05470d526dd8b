"""Consoles, progress bars and durations."""

import io

import pytest
from rich.console import Console

from asr.console import (
    FILE_WIDTH,
    Column,
    Table,
    TableCell,
    draws_bars,
    duration,
    open_console,
    progress,
    track,
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_output_to_a_file_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would fold tables at 80 columns."""
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert open_console().width == FILE_WIDTH


@pytest.mark.parametrize(("columns", "width"), [("90", FILE_WIDTH), ("200", 200)])
def test_columns_can_only_widen_a_file(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    """COLUMNS is the width of a terminal and is inherited from wherever the command was started."""
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", columns)
    assert open_console().width == width


def test_a_terminal_keeps_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", _Terminal())
    assert open_console().width < FILE_WIDTH


def test_markup_can_be_printed_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    open_console(markup=False).print("a[bold]b")
    open_console().print("a[bold]b")
    assert output.getvalue() == "a[bold]b\nab\n"


@pytest.mark.parametrize(("counts", "share"), [(True, "1/2"), (False, "50%")])
def test_progress_shows_the_share_done(counts: bool, share: str) -> None:
    output = _Terminal()
    with progress(console=Console(file=output, width=100), counts=counts) as bars:
        bars.advance(bars.add_task("reading", total=2))
    assert "reading" in output.getvalue()
    assert share in output.getvalue()


@pytest.mark.parametrize(("transient", "expected"), [(True, ""), (False, "reading")])
def test_a_file_gets_the_final_bar_unless_transient(transient: bool, expected: str) -> None:
    output = io.StringIO()
    with progress(console=Console(file=output, width=100), transient=transient) as bars:
        bars.add_task("reading", total=2)
    assert output.getvalue()[:7] == expected


def test_track_yields_every_item(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track(iter("abc"), "reading", total=3)) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_an_unknown_duration_is_a_dash() -> None:
    assert duration(None) == duration(float("nan")) == "–"
    assert duration(3599.6) == "1 h 00 min"


def test_a_table_is_printed_and_written_in_markdown_as_it_is() -> None:
    """Square brackets were taken for markup, and a bar in a cell for the end of it."""
    rows = [["[red]a[/x]", "1"], ["b|c", "20"]]
    table = Table.of("[title]", ["name", "number"], rows, caption="one\ntwo")
    output = io.StringIO()
    Console(file=output, width=80).print(table)
    shown = output.getvalue()
    assert all(text in shown for text in ("[title]", "[red]a[/x]", "b|c", "one", "two"))
    assert table.markdown().splitlines() == [
        "| name | number |",
        "|---|---|",
        "| [red]a[/x] | 1 |",
        "| b\\|c | 20 |",
    ]
    heads = [Column("model", number=False), Column("PER %")]
    detailed = Table("", heads, [[TableCell("full"), TableCell("8.10", detail="7.52 … 8.71")]])
    assert detailed.markdown().splitlines()[-1] == "| full | 8.10 (7.52 … 8.71) |"


@pytest.mark.parametrize("installed", [True, False])
def test_a_notebook_has_bars_with_ipywidgets(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    """Without them, Rich warned and showed nothing, or took FORCE_COLOR, which Jupyter sets, for a terminal.

    Then each notebook held thousands of bars.
    """
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    console = open_console(stderr=True)
    assert console.is_jupyter is installed
    assert draws_bars(console) is installed
    assert progress().disable is not installed


def test_colours_in_a_file_are_no_reason_for_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a comparison that a notebook starts inherit FORCE_COLOR, and write logs."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr", io.StringIO())
    console = open_console(stderr=True)
    assert console.is_terminal
    assert not draws_bars(console)
    monkeypatch.setattr("sys.stderr", _Terminal())
    assert draws_bars(open_console(stderr=True))


def test_a_narrow_terminal_gets_the_columns_in_tables_below_another() -> None:
    """At 80 columns, the 11 columns of a benchmark were 3 wide, and each number was "0.…"."""
    heads = [Column("N"), Column("attention", number=False), *(Column(f"quantity{i}") for i in range(6))]
    values = [f"0.00{i}" for i in range(6)]
    table = Table.of("title", heads, [["100", "i-clustered-100", *values]], caption="caption")
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert (lines[0], lines[-1]) == ("title", "caption")
    rows = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells == [["100", "i-clustered-100", *values[:4]], ["100", "i-clustered-100", *values[4:]]]


def test_a_word_wider_than_its_column_is_folded() -> None:
    console = Console(file=io.StringIO(), width=12)
    console.print(Table.of("", ["", "b"], [["", "local-128:chunk=64"]]))
    assert isinstance(console.file, io.StringIO)
    shown = "".join(line.strip("│ ") for line in console.file.getvalue().splitlines() if "│" in line)
    assert shown == "local-128:chunk=64"
