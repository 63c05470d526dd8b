"""What a page shows: a list of functions, each results → figures and tables."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from asr.console import Table
from asr.errors import UserError
from asr.experiment.results import Results
from asr.report.figure import Figure
from asr.report.options import ReportOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where results lie, for what is drawn from the files beside them.

    Attributes:
        folder: base of the paths in the results; None: only what the results themselves hold is drawn.
        options: what the user asks for.
    """

    folder: Path | None = None
    options: ReportOptions = field(default_factory=ReportOptions)


Item = Figure | Table
Drawing = Callable[[Results, Place], Iterable[Item | None]]


def once(draw: Callable[[Results], Item | None]) -> Drawing:
    """Return a drawing of the whole results."""
    return lambda results, _: [draw(results)]


def per_split(*draws: Callable[[Results, str], Item | None]) -> Drawing:
    """Return a drawing of each split in turn."""
    return lambda results, _: [draw(results, split) for split in results.splits() for draw in draws]


def drawn(results: Results, drawings: Iterable[Drawing], place: Place | None = None) -> Iterator[Item]:
    """Yield what the drawings show, in their order."""
    for draw in drawings:
        yield from (item for item in draw(results, place or Place()) if item)


def named_or_found(draw: Callable[[Path], Iterable[Item]], named: str, found: list[Path]) -> Iterator[Item]:
    """Yield what is drawn from a file or folder that the user named, or else from those that were found.

    Unusable data raise an error if the user named them; otherwise the figure is skipped with a warning.
    """
    for path in [Path(named)] if named else found:
        try:
            items = list(draw(path))
        except UserError as error:
            if named:
                raise
            log.warning("report: skipping a figure: %s", error)
            continue
        yield from items
