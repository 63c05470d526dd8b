"""Results on the terminal: the main tables, warnings and failures."""

from dataclasses import replace

from rich.console import Console

from asr.console import Table
from asr.experiment.results import Results
from asr.report.protocol import protocol_line
from asr.report.tables import benchmark, costs, differences, exchange, outcome, rates, scores
from asr.report.words import conditions_words


def print_results(results: Results, console: Console) -> None:
    """Print the main tables, warnings about a busy machine, and failures."""
    tables = [outcome.table(results), costs.table(results), rates.table(results)]
    for split in results.splits():
        matrix = exchange.table(results, split)
        tables += [_compact(matrix) if matrix else None, differences.table(results, split)]
        tables += [
            draw(results, split) for draw in (scores.table, scores.ratios, scores.by_layer, scores.steps)
        ]
    tables += benchmark.tables(results)
    console.print(protocol_line(results), markup=False, soft_wrap=True)
    for table in filter(None, tables):
        console.print(table)
    for split, conditions in results.conditions.items():
        if conditions.busy():
            console.print(conditions_words(split, conditions), style="yellow", markup=False, soft_wrap=True)
    for failure in results.failures:
        log = f" (log: {failure.log})" if failure.log else ""
        text = f"FAILED {failure.cell}: {failure.error}{log}"
        console.print(text, style="red", markup=False, soft_wrap=True)


def _compact(table: Table) -> Table:
    """Return a table without notes in its cells and without caption, because terminals are narrow."""
    rows = [[replace(cell, detail="") for cell in row] for row in table.rows]
    return replace(table, rows=rows, caption="")
