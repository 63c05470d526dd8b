"""Terminal output: tables, progress bars, durations."""

import importlib.util
import logging
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

Item = TypeVar("Item")

FILE_WIDTH = 160  # characters per line outside a terminal, where rich would fold tables at 80
WORD_WIDTH = 16  # characters of a word that are kept on a line in a column of text
ESCAPED = str.maketrans({"|": r"\|", "*": r"\*"})  # in Markdown


@dataclass(frozen=True)
class TableCell:
    """A table cell.

    Attributes:
        text: main text.
        sort: sort key; None sorts last.
        tone: strength of the background, 0 to 1; 1 marks the lowest error rate.
        note: tooltip.
        own: whether the model runs with the mechanism that it was trained with.
        family: mechanism family, shown as a coloured dot.
        detail: small print below the text.
    """

    text: str
    sort: float | str | None = None
    tone: float | None = None
    note: str = ""
    own: bool = False
    family: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


@dataclass(frozen=True)
class Column:
    """Head of a column; `help` is its tooltip, `wrap` whether its cells may take several lines."""

    name: str
    help: str = ""
    number: bool = True
    wrap: bool = True


@dataclass(frozen=True)
class Table:
    """A table with three renderings: printed on a console, `markdown`, and the report's HTML template.

    Attributes:
        title, columns, rows, caption: content.
        key: name of the table on a page.
        label: number of the table, e.g. `Table 1`.
        sections: indices of the rows that are followed by a line on a console.
    """

    title: str
    columns: list[Column]
    rows: list[list[TableCell]]
    caption: str = ""
    key: str = ""
    label: str = ""
    sections: Collection[int] = ()

    @classmethod
    def of(
        cls,
        title: str,
        heads: Sequence[str | Column],
        rows: Iterable[Sequence[str]],
        *,
        caption: str = "",
        numbers: bool = True,
        wrap: bool = True,
    ) -> "Table":
        """Return a table of text.

        Args:
            title, caption: text above and below.
            heads: columns, or their names.
            rows: text of the cells.
            numbers: whether named columns after the first contain numbers.
            wrap: whether long cells of named columns take several lines on a console.
        """
        columns = [
            Column(head, number=numbers and i > 0, wrap=wrap) if isinstance(head, str) else head
            for i, head in enumerate(heads)
        ]
        return cls(title, columns, [[TableCell(text) for text in row] for row in rows], caption)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        blocks = list(self._blocks(options.max_width))
        for block in blocks:
            yield self._drawn(
                block,
                self.title if block is blocks[0] else "",
                self.caption if block is blocks[-1] else "",
            )

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        every = list(range(len(self.columns)))
        return Measurement.get(console, options, self._drawn(every, self.title, self.caption))

    def _drawn(self, block: Collection[int], title: str, caption: str) -> rich.table.Table:
        """Return some of the columns as a table of Rich."""
        table = rich.table.Table(
            title=Text(title, "table.title") if title else None,
            caption=Text(caption, "table.caption") if caption else None,
            title_justify="left",
            caption_justify="left",
        )
        for column in (self.columns[i] for i in block):
            table.add_column(
                Text(column.name),
                justify="right" if column.number else "left",
                no_wrap=not column.wrap,
                overflow="fold",
            )
        for number, row in enumerate(self.rows):
            cells = (Text(str(row[i]), "bold" if row[i].own else "") for i in block)
            table.add_row(*cells, end_section=number in self.sections)
        return table

    def _blocks(self, width: int) -> Iterator[list[int]]:
        """Yield the columns of each table below another: all, or as many as fit without breaking a word.

        Each begins with the columns up to the first without numbers, which name the rows.
        """
        head = list(range(1 + next((i for i, x in enumerate(self.columns) if not x.number), 0)))
        block: list[int] = []
        for i in range(len(head), len(self.columns)):
            if block and sum(map(self._least, [*head, *block, i])) >= width:  # a line at the left
                yield head + block
                block = []
            block.append(i)
        yield head + block

    def _least(self, i: int) -> int:
        """Return the characters that a column needs, padding included; long words of text are folded."""
        column, texts = self.columns[i], [self.columns[i].name, *(str(row[i]) for row in self.rows)]
        pieces = [word for text in texts for word in text.split()] if column.wrap else texts
        longest = max(map(cell_len, pieces), default=0)
        return 3 + (longest if column.number or not column.wrap else min(longest, WORD_WIDTH))

    def markdown(self) -> str:
        """Return the rows in Markdown, without title and caption.

        Example:
            >>> print(Table.of("", ["a", "b"], [["x|y*2", "1"]]).markdown())
            | a | b |
            |---|---|
            | x\\|y\\*2 | 1 |
        """
        head, *rows = (
            f"| {' | '.join(text.translate(ESCAPED) for text in texts)} |"
            for texts in ([column.name for column in self.columns], *(map(str, row) for row in self.rows))
        )
        return "\n".join([head, "|" + "---|" * len(self.columns), *rows])


def open_console(*, markup: bool = True, stderr: bool = False) -> Console:
    """Return a console, at least 160 columns wide unless it is a terminal.

    In a notebook, it draws with ipywidgets if they are installed, and otherwise prints lines.

    Args:
        markup: whether to interpret `[bold]` and the like.
        stderr: whether to print to standard error instead of standard output.
    """
    console = Console(markup=markup, stderr=stderr)
    if console.is_jupyter and not importlib.util.find_spec("ipywidgets"):
        # Jupyter sets FORCE_COLOR for colours, which Rich takes for a terminal.
        console = Console(markup=markup, stderr=stderr, force_jupyter=False, force_terminal=False)
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    return console


def draws_bars(console: Console) -> bool:
    """Return whether a console can redraw a bar: on a terminal, or in a notebook with ipywidgets.

    FORCE_COLOR alone, which processes of a notebook inherit, doesn't turn a log file into a terminal.
    """
    return console.is_jupyter or (console.is_terminal and console.file.isatty())


def progress(
    *columns: ProgressColumn, console: Console | None = None, transient: bool = True, counts: bool = True
) -> Progress:
    """Return a progress display: description, bar, fraction done, time elapsed and time remaining.

    Args:
        columns: further columns, shown on the right.
        console: console to draw on; None: standard error.
        transient: whether to remove the bars at the end, and draw nothing outside a terminal.
        counts: whether to show the fraction done as `3/10` rather than a percentage.
    """
    console = console or open_console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if counts else TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        *columns,
        console=console,
        transient=transient,
        disable=transient and not draws_bars(console),
    )


def track(items: Iterable[Item], description: str, total: float | None = None) -> Iterator[Item]:
    """Yield the items under a progress bar.

    Args:
        items: items.
        description: label of the bar.
        total: number of items; None: `len(items)`, if they have a length.
    """
    with progress() as bars:
        yield from bars.track(items, total=total, description=description)


def duration(seconds: float | None) -> str:
    """Return a duration with its unit: `85.4 ms`, `3.42 s`, `12 min 05 s`, `2 h 04 min`; `–` if unknown.

    Example:
        >>> [duration(x) for x in (0.0854, 3.421, 42.0, 725.3, 7440.0)]
        ['85.4 ms', '3.42 s', '42.0 s', '12 min 05 s', '2 h 04 min']
    """
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def hours(seconds: float) -> str:
    """Return an amount of audio in hours; below one hour, in minutes; below one minute, in seconds.

    Example:
        >>> hours(3960.0), hours(252.0), hours(300.0), hours(8.25)
        ('1.1 h', '4.2 min', '5 min', '8.2 s')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds / 60:.3g} min"


def first_of(words: Sequence[str], most: int = 10) -> str:
    """Return the first of some words, with a mark if there are more.

    Example:
        >>> first_of(["go", "on"]), first_of(["go", "on"], 1)
        ('go, on', 'go …')
    """
    return ", ".join(words[:most]) + (" …" if len(words) > most else "")


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, whose plural ends in s unless it is given, also together with a verb.

    Example:
        >>> counted(1, "thread"), counted(2000, "thread"), counted(2, "word has", "words have")
        ('1 thread', '2,000 threads', '2 words have')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


class _Grouping(logging.Handler):
    """Groups log records by their message without arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[tuple[str, str], list[logging.LogRecord]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a record."""
        self.groups.setdefault((record.name, str(record.msg)), []).append(record)


@contextmanager
def grouped_warnings() -> Iterator[None]:
    """Show a block's warnings at its end; of those that differ only in names and numbers, show one.

    The alphabetically first one is shown, because threads warn in any order, with the number of others.
    """
    package = logging.getLogger("asr")
    handler = _Grouping()
    package.addHandler(handler)
    package.propagate = False
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.propagate = True
        for group in handler.groups.values():
            first, *others = sorted({x.getMessage(): x for x in group}.values(), key=lambda x: x.getMessage())
            if others:
                first.msg, first.args = f"{first.getMessage()} (and {len(others)} more)", ()
            logging.getLogger(first.name).handle(first)
