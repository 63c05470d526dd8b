"""What a page shows: a list of functions, each results → figures and tables."""

from collections.abc import Callable, Iterable, Iterator

from asr.console import Table
from asr.experiment.results import Results
from asr.report.figure import Figure

Item = Figure | Table
Drawing = Callable[[Results], Iterable[Item | None]]


def once(draw: Callable[[Results], Item | None]) -> Drawing:
    """Return a drawing of the whole results."""
    return lambda results: [draw(results)]


def per_split(*draws: Callable[[Results, str], Item | None]) -> Drawing:
    """Return a drawing of each split in turn."""
    return lambda results: [draw(results, split) for split in results.splits() for draw in draws]


def drawn(results: Results, drawings: Iterable[Drawing]) -> Iterator[Item]:
    """Yield what the drawings show, in their order."""
    for draw in drawings:
        yield from (item for item in draw(results) if item)
