"""Content of a page: a list of functions, each of which turns results into figures and tables."""

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
    """Folder and options for drawings that need files besides the results.

    Attributes:
        folder: base of the paths in the results; None: draw nothing that needs other files.
        options: options of the report.
    """

    folder: Path | None = None
    options: ReportOptions = field(default_factory=ReportOptions)


Item = Figure | Table
Drawing = Callable[[Results, Place], Iterable[Item | None]]


def once(draw: Callable[[Results], Item | None]) -> Drawing:
    """Return a drawing that calls `draw` once for all results."""
    return lambda results, _: [draw(results)]


def per_split(*draws: Callable[[Results, str], Item | None]) -> Drawing:
    """Return a drawing that calls the functions for each split in turn."""
    return lambda results, _: [draw(results, split) for split in results.splits() for draw in draws]


def drawn(results: Results, drawings: Iterable[Drawing], place: Place | None = None) -> Iterator[Item]:
    """Yield the figures and tables of all drawings, in order."""
    for draw in drawings:
        yield from (item for item in draw(results, place or Place()) if item)


def usable(draw: Callable[[Path], Iterable[Item]], paths: list[Path]) -> Iterator[Item]:
    """Yield what `draw` makes of each path; skip unusable data with a warning."""
    for path in paths:
        try:
            items = list(draw(path))
        except UserError as error:
            log.warning("report: skipping a figure: %s", error)
            continue
        yield from items
