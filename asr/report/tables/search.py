"""Search weights that were tuned for each model and mechanism."""

from asr.console import Column, Table, TableCell
from asr.experiment.results import Results
from asr.report import theme
from asr.report.tables.cells import model_cell


def table(results: Results) -> Table | None:
    """Return a row per tuned model and mechanism; None without tuning."""
    tuned = [x for x in results.evaluations if x.status == "done" and x.beam]
    if not results.protocol.get("tune") or not tuned:
        return None
    rows = []
    for evaluation in tuned:
        candidate, beam = results.candidate(evaluation.candidate), evaluation.beam or {}
        attention = evaluation.variant
        weights = [beam["lm_weight"]] if beam.get("lm") else []
        rows.append(
            [
                model_cell(candidate),
                TableCell(attention, sort=attention, family=theme.family(attention)),
                TableCell(str(evaluation.seed), sort=evaluation.seed),
                TableCell(evaluation.split, sort=evaluation.split),
                *(TableCell(f"{x:g}", sort=x) for x in (*weights, beam["word_score"], beam["size"])),
            ]
        )
    lm = [Column("LM weight")] if results.protocol["beam"].get("lm") else []
    return Table(
        key="search",
        label="Search",
        title=f"Weights of the {results.protocol['decoder']} search, tuned on {results.protocol['tune']}",
        caption="Tuned for the lowest word error rate, separately for every model and mechanism.",
        columns=[
            Column("model", number=False),
            Column("run with", number=False),
            Column("seed"),
            Column("split", number=False),
            *lm,
            Column("word score"),
            Column("beam size"),
        ],
        rows=rows,
    )
