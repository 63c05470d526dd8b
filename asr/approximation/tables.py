"""Tables of an evaluation: Table 4's layout, and all scores and times of a task."""

from collections.abc import Sequence

from asr.approximation.run import TaskResult
from asr.console import Column, Table, duration
from asr.scoring.estimates import DASH, Estimate

ATTENTION = Column("attention", number=False, wrap=False)


def table_4(results: Sequence[TaskResult]) -> Table:
    """Return the first score of each task: mechanisms in rows, tasks in columns, higher is better."""
    columns = [f"{result.task} {next(iter(result.rows[0].scores))}" for result in results]
    rows = [
        [rows[0].attention, *(words(next(iter(row.scores.values()))) for row in rows)]
        for rows in zip(*(result.rows for result in results), strict=True)
    ]
    return Table.of("Scores with the attention exchanged, 95 % intervals", [ATTENTION, *columns], rows)


def task_table(result: TaskResult, clock: str) -> Table:
    """Return all scores of a task, the ratio to full attention, and times.

    Args:
        result: results of the task.
        clock: what the times are, e.g. `CPU time`.
    """
    tokens = result.tokens / result.windows
    sizes = f"{result.examples:,} examples, {result.windows:,} inputs of {tokens:.0f} tokens on average"
    title = f"{result.task}: {sizes}"
    names = list(result.rows[0].scores)
    costs = (f"{clock} per example", f"{clock} / full (quartiles)")
    heads: list[str | Column] = [ATTENTION, *names, f"{names[0]} / full", *costs]
    rows = []
    for row in result.rows:
        times = "–"
        if row.time_ratio is not None and row.time_quartiles is not None:
            low, high = row.time_quartiles
            times = f"{row.time_ratio:.2f} ({low:.2f} … {high:.2f})"
        scores = [words(score) for score in row.scores.values()]
        rows.append([row.attention, *scores, words(row.ratio), duration(row.example_s), times])
    return Table.of(title, heads, rows)


def words(score: Estimate | None) -> str:
    """Return a score, which may be negative, with its interval."""
    return DASH if score is None else score.text("{:.3f}".format, between=" … ")
