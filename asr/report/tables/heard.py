"""Hypotheses of development utterances during a training."""

from asr.console import Column, Table, TableCell
from asr.experiment.results import Results
from asr.files import build
from asr.records.heard import Heard


def table(results: Results) -> Table | None:
    """Return the hypotheses of the latest validation beside their references; None without any."""
    heard = [build(Heard, x, "drawn: heard") for x in results.drawn.get("heard", [])]
    if not heard:
        return None
    return Table(
        key="heard",
        label="Hypotheses",
        title=f"Development utterances at step {heard[0].step}, greedy search",
        columns=[Column(name, number=False) for name in ("utterance", "reference", "hypothesis")],
        rows=[[TableCell(text, sort=text) for text in (x.id, x.reference, x.hypothesis)] for x in heard],
        caption="The same utterances, drawn with the seed, at each validation. All hypotheses are in "
        "hypotheses.jsonl.",
    )
