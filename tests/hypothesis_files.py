"""Files of hypotheses without the record that `asr decode` writes beside them."""

from collections.abc import Iterable
from pathlib import Path

from asr.files import write_text
from asr.scoring.hypotheses import Hypothesis, hypothesis_line


def write_hypotheses(path: Path, hypotheses: Iterable[Hypothesis]) -> None:
    write_text("".join(map(hypothesis_line, hypotheses)), path)
