"""hypotheses.jsonl: hypotheses of a few development utterances, from every validation of a training."""

import json
from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError


@dataclass(frozen=True)
class Heard:
    """A hypothesis beside its reference.

    Attributes:
        step: number of optimiser steps before the validation.
        id: utterance.
        reference, hypothesis: text; phones for a phone model.
    """

    step: int
    id: str
    reference: str
    hypothesis: str


def read_heard(path: Path) -> list[Heard]:
    """Read the hypotheses of all validations; none without the file.

    A last line without a line break is ignored: it is being written, or its writer was killed.

    Raises:
        UserError: a line isn't a hypothesis.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text[: text.rfind("\n") + 1].split("\n")[:-1]
    try:
        return [Heard(**json.loads(line)) for line in lines]
    except (ValueError, TypeError):
        raise UserError(f"{path}: damaged: expected the hypotheses of a training") from None
