"""Tables of an evaluation: Table 4's layout, all scores and times of a task, and their ratios."""

from collections.abc import Sequence

from asr.approximation.options import FULL
from asr.approximation.run import MechanismResult, TaskResult
from asr.attention.table import layer_runs
from asr.console import Column, Table, duration
from asr.scoring.estimates import DASH, Estimate, percent

ATTENTION = Column("attention", number=False, wrap=False)
PERCENT = ("WER", "top-1", "changed")  # scores shown in percent


def table_4(results: Sequence[TaskResult]) -> Table:
    """Return the first score of each task: mechanisms in rows, tasks in columns."""
    firsts = [next(iter(result.rows[0].scores)) for result in results]
    columns = [f"{result.task} {_head(first)}" for result, first in zip(results, firsts, strict=True)]
    rows = [
        [
            rows[0].attention,
            *(words(next(iter(row.scores.values())), x) for row, x in zip(rows, firsts, strict=True)),
        ]
        for rows in zip(*(result.rows for result in results), strict=True)
    ]
    return Table.of("Scores with the attention exchanged, 95 % intervals", [ATTENTION, *columns], rows)


def score_table(result: TaskResult, clock: str) -> Table:
    """Return all scores of a task, and times.

    Args:
        result: results of the task.
        clock: what the times are, e.g. `CPU time`.
    """
    tokens = result.tokens / result.windows
    sizes = f"{result.examples:,} examples, {result.windows:,} inputs of {tokens:.0f} tokens on average"
    names = list(result.rows[0].scores)
    heads: list[str | Column] = [ATTENTION, *map(_head, names), f"{clock} of the {result.timed} per example"]
    heads.append(f"peak MiB of the {result.timed}, longest batch")
    rows = [
        [
            row.attention,
            *(words(row.scores[name], name) for name in names),
            duration(row.example_s),
            DASH if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.0f}",
        ]
        for row in result.rows
    ]
    return Table.of(f"{result.task}: {sizes}", heads, rows)


def ratio_table(result: TaskResult, clock: str) -> Table:
    """Return the ratios of all scores and times to the baseline's; arguments as in `score_table`."""
    names = list(result.rows[0].scores)
    heads: list[str | Column] = [ATTENTION, *names, f"{clock} (quartiles)"]
    rows = []
    for row in result.rows:
        times = DASH
        if row.time_ratio is not None and row.time_quartiles is not None:
            low, high = row.time_quartiles
            times = f"{row.time_ratio:.2f} ({low:.2f} … {high:.2f})"
        rows.append([row.attention, *(words(row.ratios[name]) for name in names), times])
    return Table.of(f"{result.task}: ratios to {result.baseline}", heads, rows)


def by_layer(result: TaskResult) -> dict[str, list[MechanismResult]]:
    """Return the results of a sweep over layers, by the mechanism that is in one layer at a time."""
    found: dict[str, list[MechanismResult]] = {}
    for row in result.rows:
        others = [spec.name for spec, _ in layer_runs(row.attention) if spec.name != FULL]
        for name in others:
            found.setdefault(name, []).append(row)
    return found


def layer_table(result: TaskResult) -> Table:
    """Return the scores with each mechanism in one layer at a time, full attention in the others."""
    names = list(result.rows[0].scores)
    rows = [
        [attention, str(number), *(words(row.scores[name], name) for name in names)]
        for attention, found in by_layer(result).items()
        for number, row in enumerate(found, 1)
    ]
    title = f"{result.task}: one layer exchanged, {FULL} in the others"
    return Table.of(title, [ATTENTION, "layer", *map(_head, names)], rows)


def words(score: Estimate | None, name: str = "") -> str:
    """Return a score, which may be negative, with its interval."""
    form = percent if name in PERCENT else "{:.3f}".format
    return DASH if score is None else score.text(form, between=" … ")


def _head(name: str) -> str:
    return f"{name} %" if name in PERCENT else name
